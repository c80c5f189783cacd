// Attention of few rows, for any instruction set that a Simd type describes (simd/avx512.h is one).
//
// Online softmax (Milakov and Gimelshein, arXiv:1805.02867) over blocks of cells. The heads that share K and V are
// computed together, so that each number of a cell is converted once for all of them. Each sum has an order of its
// own, by cell and by dimension: no result depends on the other rows, streams, or on the number of threads.
#pragma once

#include "../simd/functions.h"
#include "../simd/number.h"
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

constexpr int BLOCK = 64;  // cells between two looks at the largest score
constexpr int TILES = 16;  // of a row that one thread takes at most

struct Head {  // of one row, over the cells of one unit
    const float * query;
    float * out;  // [head_v], `sum` times too large
    float slope;
    float largest = -INFINITY, sum = 0.0f;  // of the scores; of exp(score - largest)
};

// ALiBi (arXiv:2108.12409): what a head multiplies the mask by.
float slope(const Attention & a, int64_t head) {
    if (a.max_bias <= 0.0f) return 1.0f;
    const int64_t base = int64_t(1) << int(std::floor(std::log2(double(heads(a)))));
    return head < base ? std::pow(std::pow(2.0f, -a.max_bias / base), float(head + 1))
                       : std::pow(std::pow(2.0f, -a.max_bias / 2.0f / base), float(2 * (head - base) + 1));
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

// Brings K and V of the block after this one into the second cache, some cells at a time, while this one is computed:
// the processor does not foresee which come next. Into the first cache, fewer lines would be on their way at once.
struct Fetch {
    const char *k = nullptr, *v = nullptr;
    size_t k_cell, v_cell, k_bytes, v_bytes;
    int cells = 0, steps, step = 0;

    void some() {
        for (int cell = cells * step / steps, end = cells * ++step / steps; cell < end; cell++) {
            for (size_t at = 0; at < k_bytes; at += 64) __builtin_prefetch(k + cell * k_cell + at, 0, 2);
            for (size_t at = 0; at < v_bytes; at += 64) __builtin_prefetch(v + cell * v_cell + at, 0, 2);
        }
    }
};

// Dot products of HEADS queries with Simd::WIDTH cells, into products[HEADS][BLOCK].
template <class Simd, class Cell, int HEADS>
void dot_products(const Attention & a, const Head * heads, const char * k, int64_t at, int64_t last, float * products, Fetch & fetch) {
    alignas(64) float sums[HEADS][Simd::WIDTH * Simd::WIDTH];
    for (int i = 0; i < Simd::WIDTH; i += Simd::CELLS) {
        typename Simd::Vector sum[HEADS][Simd::CELLS];
        const char * cells[Simd::CELLS];
        fetch.some();
        for (int c = 0; c < Simd::CELLS; c++) {
            const int64_t cell = at + i + c;
            cells[c] = k + (cell < last ? cell : last) * a.k_cell;
            for (int h = 0; h < HEADS; h++) sum[h][c] = Simd::all(0.0f);
        }
        for (int d = 0; d < a.head_k; d += Simd::WIDTH) {
            typename Simd::Vector key[Simd::CELLS];
            for (int c = 0; c < Simd::CELLS; c++) key[c] = Cell::load(cells[c], d);
            for (int h = 0; h < HEADS; h++) {
                const auto query = Simd::load(heads[h].query + d);
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

// out = out * factors + weights[HEADS][BLOCK] V, for the dimensions [d, d + STEPS * WIDTH).
template <class Simd, class Cell, int HEADS, int STEPS>
void add_values(const Attention & a, const char * v, uint64_t bits, const float * weights, const float * factors, int d, const Head * heads) {
    typename Simd::Vector sum[HEADS][STEPS];
    for (int h = 0; h < HEADS; h++)
        for (int s = 0; s < STEPS; s++)
            sum[h][s] = Simd::multiply(Simd::load(heads[h].out + d + s * Simd::WIDTH), Simd::all(factors[h]));
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
        for (int s = 0; s < STEPS; s++) Simd::store(heads[h].out + d + s * Simd::WIDTH, sum[h][s]);
}

// A block for heads that share K and V. bits, added: of seen().
template <class Simd, class Cell, int HEADS>
void attend_block(const Attention & a, Head * heads, const char * k, const char * v, int count, uint64_t bits, const float * added, Fetch & fetch) {
    alignas(64) float scores[HEADS * BLOCK];
    float factors[HEADS];
    for (int i = 0; i < BLOCK; i += Simd::WIDTH)
        if (bits >> i & Simd::EVERY) dot_products<Simd, Cell, HEADS>(a, heads, k, i, count - 1, scores + i, fetch);
    for (int h = 0; h < HEADS; h++)
        factors[h] = to_weights<Simd>(a, heads[h].slope, bits, added, scores + h * BLOCK, heads[h].largest, heads[h].sum);
    int d = 0;
    for (; d + Simd::STEPS * Simd::WIDTH <= a.head_v; d += Simd::STEPS * Simd::WIDTH)
        add_values<Simd, Cell, HEADS, Simd::STEPS>(a, v, bits, scores, factors, d, heads);
    for (; d < a.head_v; d += Simd::WIDTH) add_values<Simd, Cell, HEADS, 1>(a, v, bits, scores, factors, d, heads);
}

// Some tiles of a row, which are up to TOGETHER heads of a kv head each, over a chunk of cells.
struct Unit {
    int64_t stream, row, chunk, tile, tiles;
    int64_t begin, end;                     // cells
    uint64_t bits[CHUNK / BLOCK];           // which are seen
    alignas(64) float added[CHUNK];         // by the mask
};

struct Units {
    const Attention & a;
    int64_t groups, count;

    // Of one tile each where threads would else be idle.
    Units(const Attention & a, int threads) : a(a) {
        const int64_t of_a_row = tiles(a), alike = a.streams * a.rows * chunks(a);
        const int64_t together = std::min(of_a_row, std::max<int64_t>(1, std::min<int64_t>(TILES, alike * of_a_row / (4 * threads))));
        groups = (of_a_row + together - 1) / together;
        count = alike * groups;
    }

    // Rows of a stream, which share their cells, follow each other.
    template <class Simd> bool find(int64_t n, Unit & u) const {
        if (n >= count) return false;
        u.row = n % a.rows, n /= a.rows;
        const int64_t group = n % groups;
        u.chunk = n / groups % chunks(a), u.stream = n / groups / chunks(a);
        u.tile = tiles(a) * group / groups, u.tiles = tiles(a) * (group + 1) / groups - u.tile;
        u.begin = u.chunk * CHUNK, u.end = std::min(u.begin + CHUNK, a.cells);
        const char * mask = a.mask ? a.mask + u.stream % a.mask_streams * a.mask_stream + u.row * a.mask_row : nullptr;
        for (int b = 0; b < CHUNK / BLOCK; b++) {
            const int64_t at = u.begin + b * BLOCK;
            u.bits[b] = at < u.end ? seen<Simd>(mask, at, std::min<int64_t>(BLOCK, u.end - at), u.added + b * BLOCK) : 0;
        }
        return true;
    }

    // The first block from `b` on that is seen; of u, then of `after`, which may be null.
    Fetch fetch(const Unit & u, int b, const Unit * after) const {
        Fetch to{};
        while (b < CHUNK / BLOCK && !u.bits[b]) b++;
        if (b == CHUNK / BLOCK) return after ? fetch(*after, 0, nullptr) : to;
        const int64_t at = u.begin + b * BLOCK, first = u.tile / tiles_per_kv(a), others = (u.tile + u.tiles - 1) / tiles_per_kv(a) - first;
        to.k_cell = a.k_cell, to.v_cell = a.v_cell;
        to.k = k_of(a, u.stream, first) + at * a.k_cell, to.v = v_of(a, u.stream, first) + at * a.v_cell;
        to.k_bytes = cell_bytes(a, a.head_k) + others * a.k_head, to.v_bytes = cell_bytes(a, a.head_v) + others * a.v_head;
        to.cells = std::min<int64_t>(BLOCK, u.end - at);
        return to;
    }
};

template <class Simd, class Cell>
void attend_unit(const Units & units, const Unit & u, const Unit * after, Head * heads) {
    const Attention & a = units.a;
    for (int b = 0; b < CHUNK / BLOCK; b++) {
        if (!u.bits[b]) continue;
        Fetch fetch = units.fetch(u, b + 1, after);
        fetch.steps = static_cast<int>(u.tiles) * (BLOCK / Simd::CELLS);
        const int64_t at = u.begin + b * BLOCK;
        const int count = std::min<int64_t>(BLOCK, u.end - at);
        for (int64_t n = u.tile; n < u.tile + u.tiles; n++) {
            const int64_t kv_head = n / tiles_per_kv(a), first = first_head(a, n);
            const char * k = k_of(a, u.stream, kv_head) + at * a.k_cell, * v = v_of(a, u.stream, kv_head) + at * a.v_cell;
            Head * of_tile = heads + first - first_head(a, u.tile);
            const auto attend = [&](auto number) {
                attend_block<Simd, Cell, decltype(number)::value>(a, of_tile, k, v, count, u.bits[b], u.added + b * BLOCK, fetch);
            };
            switch (first_head(a, n + 1) - first) {
                case 1: attend(Number<1>{}); break;
                case 2: attend(Number<2>{}); break;
                case 3: attend(Number<3>{}); break;
                default: attend(Number<4>{});
            }
        }
    }
}

void scale_numbers(float * numbers, int count, float factor) {
    for (int i = 0; i < count; i++) numbers[i] *= factor;
}

// Adds `from` to `to`, in terms of the larger of the largest scores. from.out may be null: a sink, which has no V.
template <class Simd> void merge(Head & to, float largest, float sum, const float * out, int head_v) {
    if (largest == -INFINITY) return;
    const bool rises = largest > to.largest;
    const float ours = !rises ? 1.0f : to.largest == -INFINITY ? 0.0f : exp_of_one<Simd>(to.largest - largest);
    const float theirs = rises ? 1.0f : exp_of_one<Simd>(largest - to.largest);
    if (rises) to.largest = largest;
    to.sum = to.sum * ours + sum * theirs;
    for (int d = 0; d < head_v; d++) to.out[d] = to.out[d] * ours + (out ? out[d] * theirs : 0.0f);
}

template <class Simd> void finish_head(const Attention & a, int64_t head, Head & h) {
    if (a.sinks) merge<Simd>(h, a.sinks[head], 1.0f, nullptr, a.head_v);
    scale_numbers(h.out, a.head_v, h.sum == 0.0f ? 0.0f : 1.0f / h.sum);
}

Head new_head(const Attention & a, int64_t stream, int64_t row, int64_t head, float * out) {
    std::memset(out, 0, sizeof(float) * a.head_v);
    return {reinterpret_cast<const float *>(a.q + stream * a.q_stream + head * a.q_head + row * a.q_row), out, slope(a, head)};
}

float * partial_of(const Attention & a, float * partials, int64_t stream, int64_t row, int64_t chunk, int64_t head) {
    return partials + (((stream * a.rows + row) * chunks(a) + chunk) * heads(a) + head) * (2 + a.head_v);
}

float * out_of(const Attention & a, int64_t stream, int64_t row, int64_t head) {
    return reinterpret_cast<float *>(a.out + stream * a.out_stream + row * a.out_row + head * a.out_head);
}

// What one thread does of a call. partials: [streams][rows][chunks][heads][2 + head_v] where there are several chunks.
template <class Simd> void attend_few(const Attention & a, float * partials, int64_t & taken, int threads) {
    const Units units(a, threads);
    const bool whole = chunks(a) == 1;
    const auto take = [&](Unit & u) { return units.find<Simd>(__atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED), u); };
    Unit two[2];
    Head of_unit[TILES * TOGETHER];
    bool more = take(two[0]);
    for (int n = 0; more; n ^= 1) {
        const Unit & u = two[n];
        more = take(two[n ^ 1]);
        const int64_t first = first_head(a, u.tile), end = first_head(a, u.tile + u.tiles);
        for (int64_t h = first; h < end; h++)
            of_unit[h - first] = new_head(a, u.stream, u.row, h, whole ? out_of(a, u.stream, u.row, h) : partial_of(a, partials, u.stream, u.row, u.chunk, h) + 2);
        const Unit * after = more ? &two[n ^ 1] : nullptr;
        switch (a.cell_type) {
            case CellType::F16: attend_unit<Simd, typename Simd::F16>(units, u, after, of_unit); break;
            case CellType::BF16: attend_unit<Simd, typename Simd::BF16>(units, u, after, of_unit); break;
            case CellType::Q8_0: attend_unit<Simd, typename Simd::Q8_0>(units, u, after, of_unit); break;
        }
        for (int64_t h = first; h < end; h++) {
            Head & done = of_unit[h - first];
            float * const kept = done.out - 2;
            if (whole) finish_head<Simd>(a, h, done);
            else kept[0] = done.largest, kept[1] = done.sum;
        }
    }
}

// A row from the partial results of its chunks, in their order.
template <class Simd> void merge_row(const Attention & a, float * partials, int64_t stream, int64_t row) {
    for (int64_t h = 0; h < heads(a); h++) {
        Head whole = new_head(a, stream, row, h, out_of(a, stream, row, h));
        for (int64_t chunk = 0; chunk < chunks(a); chunk++) {
            const float * const from = partial_of(a, partials, stream, row, chunk, h);
            merge<Simd>(whole, from[0], from[1], from + 2, a.head_v);
        }
        finish_head<Simd>(a, h, whole);
    }
}

}  // namespace
