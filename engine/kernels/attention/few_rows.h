// Attention of few rows, for any instruction set that a Simd type describes (avx512.cpp has an example).
//
// Online softmax (Milakov and Gimelshein, arXiv:1805.02867) over blocks of cells. The heads that share K and V are
// computed together, so that each number of a cell is converted once for all of them. Each sum has an order of its
// own, by cell and by dimension: no result depends on the other rows, streams, or on the number of threads.
#pragma once

#include "attention.h"

#include <cmath>
#include <cstring>

namespace {

constexpr int BLOCK = 64;  // cells between two looks at the largest score
constexpr int AHEAD = 32;  // cells, of which K is fetched before it is needed

struct Tile {  // heads that are computed together, for one row and one chunk
    int64_t stream, row, kv_head, head, begin, end;
    int heads;
};

struct Partial {
    float largest, sum;  // of the scores; of exp(score - largest)
    float * out;         // [head_v]
};

Tile tile(const Attention & a, int64_t n, int64_t chunk) {
    Tile t;
    const int64_t parts = tiles_per_kv(a), part = n % parts;
    t.kv_head = n / parts % a.kv_heads;
    t.row = n / parts / a.kv_heads % a.rows;
    t.stream = n / parts / a.kv_heads / a.rows;
    const int64_t first = a.heads_per_kv * part / parts, last = a.heads_per_kv * (part + 1) / parts;
    t.head = t.kv_head * a.heads_per_kv + first;
    t.heads = static_cast<int>(last - first);
    t.begin = chunk * CHUNK;
    t.end = t.begin + CHUNK < a.cells ? t.begin + CHUNK : a.cells;
    return t;
}

// ALiBi (arXiv:2108.12409): what a head multiplies the mask by.
float slope(const Attention & a, int64_t head) {
    if (a.max_bias <= 0.0f) return 1.0f;
    const int64_t heads = a.kv_heads * a.heads_per_kv;
    const int64_t base = int64_t(1) << int(std::floor(std::log2(double(heads))));
    return head < base ? std::pow(std::pow(2.0f, -a.max_bias / base), float(head + 1))
                       : std::pow(std::pow(2.0f, -a.max_bias / 2.0f / base), float(2 * (head - base) + 1));
}

// exp(x), to 2 units in the last place, for x <= 0. What is below the range becomes about 1e-38; NaN stays.
template <class Simd> typename Simd::Vector exp_of(typename Simd::Vector x) {
    // Taylor's series of 2^f, |f| <= 1/2
    constexpr float terms[] = {1.5403530e-4f, 1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f};
    const auto t = Simd::multiply(Simd::larger(Simd::all(-87.0f), x), Simd::all(1.44269504f));
    const auto n = Simd::rounded(t);
    const auto f = Simd::subtract(t, n);
    auto sum = Simd::all(terms[0]);
    for (int i = 1; i < 7; i++) sum = Simd::multiply_add(sum, f, Simd::all(terms[i]));
    return Simd::times_power_of_2(sum, n);
}

template <class Simd> float exp_of_one(float x) { return Simd::first(exp_of<Simd>(Simd::all(x))); }

// tanh(x) = sign(x) (1 - 2 e / (1 + e)), e = exp(-2 |x|)
template <class Simd> typename Simd::Vector tanh_of(typename Simd::Vector x) {
    const auto e = exp_of<Simd>(Simd::multiply(Simd::absolute(x), Simd::all(-2.0f)));
    const auto one = Simd::all(1.0f);
    return Simd::with_sign_of(Simd::divide(Simd::subtract(one, e), Simd::add(one, e)), x);
}

// Cells of a head lie apart, which the processor does not foresee.
inline void prefetch(const char * cell, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(cell + at);
}

// Which of the cells from `at` on are seen, and what the mask adds to their scores.
template <class Simd> uint64_t seen(const char * mask, int64_t at, int count, float * added) {
    uint64_t bits = 0;
    for (int i = 0; i < BLOCK; i += Simd::WIDTH) {
        const int here = count - i < 0 ? 0 : count - i < Simd::WIDTH ? count - i : Simd::WIDTH;
        const auto m = mask ? Simd::some_half(mask + 2 * (at + i), here) : Simd::all(0.0f);
        Simd::store(added + i, m);
        const uint64_t within = here == Simd::WIDTH ? Simd::EVERY : (uint64_t(1) << here) - 1;
        bits |= (Simd::above_minus_infinity(m) & within) << i;
    }
    return bits;
}

// Dot products of HEADS queries with Simd::WIDTH cells, into products[HEADS][BLOCK].
template <class Simd, class Cell, int HEADS>
void dot_products(const Attention & a, const float * queries, const char * k, int64_t at, int64_t last, float * products) {
    alignas(64) float sums[HEADS][Simd::WIDTH * Simd::WIDTH];
    for (int i = 0; i < Simd::WIDTH; i += Simd::CELLS) {
        typename Simd::Vector sum[HEADS][Simd::CELLS];
        const char * cells[Simd::CELLS];
        for (int c = 0; c < Simd::CELLS; c++) {
            const int64_t cell = at + i + c;
            cells[c] = k + (cell < last ? cell : last) * a.k_cell;
            for (int h = 0; h < HEADS; h++) sum[h][c] = Simd::all(0.0f);
        }
        for (int d = 0; d < a.head_k; d += Simd::WIDTH) {
            typename Simd::Vector key[Simd::CELLS];
            for (int c = 0; c < Simd::CELLS; c++) key[c] = Cell::load(cells[c], d);
            for (int h = 0; h < HEADS; h++) {
                const auto query = Simd::load(queries + h * a.head_k + d);
                for (int c = 0; c < Simd::CELLS; c++) sum[h][c] = Simd::multiply_add(query, key[c], sum[h][c]);
            }
        }
        for (int h = 0; h < HEADS; h++)
            for (int c = 0; c < Simd::CELLS; c++) Simd::store(sums[h] + (i + c) * Simd::WIDTH, sum[h][c]);
    }
    for (int h = 0; h < HEADS; h++) Simd::store(products + h * BLOCK, Simd::sums_of_rows(sums[h]));
}

// Dot products of a block become weights exp(score - largest), 0 for cells that are not seen. `largest` and `sum` are
// those of the blocks before, and are renewed. Returns what the values that were added up before are multiplied by.
template <class Simd>
float to_weights(const Attention & a, float slope, uint64_t bits, const float * added, float * scores, float & largest, float & sum) {
    const auto cap = Simd::all(a.soft_cap), scale = Simd::all(a.soft_cap ? a.scale / a.soft_cap : a.scale);
    auto top = Simd::all(-INFINITY);
    for (int i = 0; i < BLOCK; i += Simd::WIDTH) {
        auto score = Simd::multiply(Simd::load(scores + i), scale);
        if (a.soft_cap) score = Simd::multiply(tanh_of<Simd>(score), cap);
        score = Simd::multiply_add(Simd::load(added + i), Simd::all(slope), score);
        score = Simd::select(bits >> i & Simd::EVERY, score, Simd::all(-INFINITY));
        Simd::store(scores + i, score);
        top = Simd::larger(score, top);
    }
    const float top_score = Simd::largest(top);
    float factor = 1.0f;
    if (top_score > largest) {
        factor = largest == -INFINITY ? 0.0f : exp_of_one<Simd>(largest - top_score);
        largest = top_score;
    }
    auto total = Simd::all(0.0f);
    for (int i = 0; i < BLOCK; i += Simd::WIDTH) {
        const auto score = Simd::subtract(Simd::load(scores + i), Simd::all(largest));
        const auto weight = Simd::select(bits >> i & Simd::EVERY, exp_of<Simd>(score), Simd::all(0.0f));
        Simd::store(scores + i, weight);
        total = Simd::add(total, weight);
    }
    sum = sum * factor + Simd::sum(total);
    return factor;
}

// out[HEADS][head_v] = out * factors + weights[HEADS][BLOCK] V, for the dimensions [d, d + STEPS * WIDTH).
template <class Simd, class Cell, int HEADS, int STEPS>
void add_values(const Attention & a, const char * v, uint64_t bits, const float * weights, const float * factors, int d, float * out) {
    typename Simd::Vector sum[HEADS][STEPS];
    for (int h = 0; h < HEADS; h++)
        for (int s = 0; s < STEPS; s++)
            sum[h][s] = Simd::multiply(Simd::load(out + h * a.head_v + d + s * Simd::WIDTH), Simd::all(factors[h]));
    for (; bits; bits &= bits - 1) {
        const int cell = __builtin_ctzll(bits);
        typename Simd::Vector value[STEPS];
        for (int s = 0; s < STEPS; s++) value[s] = Cell::load(v + cell * a.v_cell, d + s * Simd::WIDTH);
        for (int h = 0; h < HEADS; h++) {
            const auto weight = Simd::all(weights[h * BLOCK + cell]);
            for (int s = 0; s < STEPS; s++) sum[h][s] = Simd::multiply_add(weight, value[s], sum[h][s]);
        }
    }
    for (int h = 0; h < HEADS; h++)
        for (int s = 0; s < STEPS; s++) Simd::store(out + h * a.head_v + d + s * Simd::WIDTH, sum[h][s]);
}

// Softmax over the cells of a chunk, not yet divided by its sum: partials[HEADS].
template <class Simd, class Cell, int HEADS> void attend_chunk(const Attention & a, const Tile & t, Partial * partials) {
    const int64_t kv_stream = t.stream / (a.streams / a.kv_streams);
    const char * k = a.k + kv_stream * a.k_stream + t.kv_head * a.k_head;
    const char * v = a.v + kv_stream * a.v_stream + t.kv_head * a.v_head;
    const char * mask = a.mask ? a.mask + t.stream % a.mask_streams * a.mask_stream + t.row * a.mask_row : nullptr;
    alignas(64) float queries[HEADS * MOST_HEAD], out[HEADS * MOST_HEAD], scores[HEADS * BLOCK], added[BLOCK];
    float slopes[HEADS], largest[HEADS], sums[HEADS], factors[HEADS];
    for (int h = 0; h < HEADS; h++) {
        std::memcpy(queries + h * a.head_k, a.q + t.stream * a.q_stream + (t.head + h) * a.q_head + t.row * a.q_row, sizeof(float) * a.head_k);
        slopes[h] = slope(a, t.head + h);
        largest[h] = -INFINITY;
        sums[h] = 0.0f;
    }
    std::memset(out, 0, sizeof(float) * HEADS * a.head_v);

    const auto fetch = [&](const char * cells, size_t cell_step, size_t bytes, int64_t at) {
        for (int64_t cell = at; cell < at + Simd::WIDTH && cell < t.end; cell++) prefetch(cells + cell * cell_step, bytes);
    };
    const size_t k_bytes = cell_bytes(a, a.head_k), v_bytes = cell_bytes(a, a.head_v);
    for (int i = 0; i < AHEAD; i += Simd::WIDTH) fetch(k, a.k_cell, k_bytes, t.begin + i);

    for (int64_t at = t.begin; at < t.end; at += BLOCK) {
        const int count = t.end - at < BLOCK ? static_cast<int>(t.end - at) : BLOCK;
        const uint64_t bits = seen<Simd>(mask, at, count, added);
        if (!bits) continue;
        for (int i = 0; i < BLOCK; i += Simd::WIDTH) {
            fetch(k, a.k_cell, k_bytes, at + i + AHEAD);
            fetch(v, a.v_cell, v_bytes, at + i);
            if (bits >> i & Simd::EVERY) dot_products<Simd, Cell, HEADS>(a, queries, k, at + i, t.end - 1, scores + i);
        }
        for (int h = 0; h < HEADS; h++)
            factors[h] = to_weights<Simd>(a, slopes[h], bits, added, scores + h * BLOCK, largest[h], sums[h]);
        int d = 0;
        for (; d + Simd::STEPS * Simd::WIDTH <= a.head_v; d += Simd::STEPS * Simd::WIDTH)
            add_values<Simd, Cell, HEADS, Simd::STEPS>(a, v + at * a.v_cell, bits, scores, factors, d, out);
        for (; d < a.head_v; d += Simd::WIDTH)
            add_values<Simd, Cell, HEADS, 1>(a, v + at * a.v_cell, bits, scores, factors, d, out);
    }
    for (int h = 0; h < HEADS; h++) {
        partials[h].largest = largest[h];
        partials[h].sum = sums[h];
        std::memcpy(partials[h].out, out + h * a.head_v, sizeof(float) * a.head_v);
    }
}

template <class Simd, class Cell> void attend_tile(const Attention & a, const Tile & t, Partial * partials) {
    switch (t.heads) {
        case 1: return attend_chunk<Simd, Cell, 1>(a, t, partials);
        case 2: return attend_chunk<Simd, Cell, 2>(a, t, partials);
        case 3: return attend_chunk<Simd, Cell, 3>(a, t, partials);
        default: return attend_chunk<Simd, Cell, 4>(a, t, partials);
    }
}

template <class Simd> void attend_tile(const Attention & a, const Tile & t, Partial * partials) {
    switch (a.cell_type) {
        case CellType::F16: return attend_tile<Simd, typename Simd::F16>(a, t, partials);
        case CellType::BF16: return attend_tile<Simd, typename Simd::BF16>(a, t, partials);
        case CellType::Q8_0: return attend_tile<Simd, typename Simd::Q8_0>(a, t, partials);
    }
}

void scale_numbers(float * numbers, int count, float factor) {
    for (int i = 0; i < count; i++) numbers[i] *= factor;
}

// Adds `from` to `to`, in terms of the larger of the largest scores. from.out may be null: a sink, which has no V.
template <class Simd> void merge(Partial & to, const Partial & from, int head_v) {
    if (from.largest == -INFINITY) return;
    const bool rises = from.largest > to.largest;
    const float ours = !rises ? 1.0f : to.largest == -INFINITY ? 0.0f : exp_of_one<Simd>(to.largest - from.largest);
    const float theirs = rises ? 1.0f : exp_of_one<Simd>(from.largest - to.largest);
    if (rises) to.largest = from.largest;
    to.sum = to.sum * ours + from.sum * theirs;
    for (int d = 0; d < head_v; d++) to.out[d] = to.out[d] * ours + (from.out ? from.out[d] * theirs : 0.0f);
}

template <class Simd> void finish_head(const Attention & a, int64_t head, Partial & partial) {
    if (a.sinks) merge<Simd>(partial, {a.sinks[head], 1.0f, nullptr}, a.head_v);
    scale_numbers(partial.out, a.head_v, partial.sum == 0.0f ? 0.0f : 1.0f / partial.sum);
}

template <class Simd> void finish(const Attention & a, const Tile & t, Partial * partials) {
    for (int h = 0; h < t.heads; h++) finish_head<Simd>(a, t.head + h, partials[h]);
}

// All of a call. partials: [tiles][chunks][TOGETHER][2 + head_v] where there are several chunks.
template <class Simd> void attend_few(const Attention & a, float * kept, int threads) {
    const int64_t total = tiles(a), parts = chunks(a), width = 2 + a.head_v;
    const auto into = [&](const Tile & t, Partial * partials) {
        for (int h = 0; h < t.heads; h++)
            partials[h].out = reinterpret_cast<float *>(a.out + t.stream * a.out_stream + t.row * a.out_row + (t.head + h) * a.out_head);
    };
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic)
        for (int64_t n = 0; n < total * parts; n++) {
            const Tile t = tile(a, n / parts, n % parts);
            Partial partials[TOGETHER];
            float * to = kept + n * TOGETHER * width;
            if (parts == 1) into(t, partials);
            else for (int h = 0; h < t.heads; h++) partials[h].out = to + h * width + 2;
            attend_tile<Simd>(a, t, partials);
            if (parts == 1) finish<Simd>(a, t, partials);
            else for (int h = 0; h < t.heads; h++) to[h * width] = partials[h].largest, to[h * width + 1] = partials[h].sum;
        }
        if (parts > 1) {
#pragma omp for schedule(dynamic)
            for (int64_t n = 0; n < total; n++) {
                const Tile t = tile(a, n, 0);
                Partial partials[TOGETHER];
                into(t, partials);
                for (int h = 0; h < t.heads; h++) {
                    partials[h].largest = -INFINITY, partials[h].sum = 0.0f;
                    std::memset(partials[h].out, 0, sizeof(float) * a.head_v);
                    for (int64_t p = 0; p < parts; p++) {
                        float * from = kept + ((n * parts + p) * TOGETHER + h) * width;
                        merge<Simd>(partials[h], {from[0], from[1], from + 2}, a.head_v);
                    }
                }
                finish<Simd>(a, t, partials);
            }
        }
    }
}

}  // namespace
