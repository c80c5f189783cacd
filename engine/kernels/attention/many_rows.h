// Attention of many rows: that of few_rows.h, with K and V of a block laid out once for up to QUERIES of a kv head.
// A query is a head of a row. No result depends on the other queries.
#pragma once

#include "few_rows.h"

namespace {

constexpr int QUERIES = 128;  // rows times heads
constexpr int VECTORS = 4;    // of sums beside each other

struct Scratch {
    alignas(64) float k[MOST_HEAD * BLOCK];  // [head_k][BLOCK]
    alignas(64) float v[BLOCK * MOST_HEAD];  // [BLOCK][head_v]; zeros where they are not added from here
    alignas(64) float k_row[BLOCK * MOST_HEAD];
    alignas(64) float weights[TOGETHER * BLOCK], added[BLOCK];
};

// sums[ROWS][VECTORS] += left[ROWS][depth] right[depth][VECTORS * WIDTH], one step of depth after the other.
template <class Simd, int ROWS, int COLUMNS>
void add_tile(const float * const * left, const float * right, int stride, int depth, typename Simd::Vector (&sums)[ROWS][COLUMNS]) {
    for (int n = 0; n < depth; n++, right += stride) {
        typename Simd::Vector of_right[COLUMNS];
        for (int c = 0; c < COLUMNS; c++) of_right[c] = Simd::load(right + c * Simd::WIDTH);
        for (int r = 0; r < ROWS; r++) {
            const auto of_left = Simd::all(left[r][n]);
            for (int c = 0; c < COLUMNS; c++) sums[r][c] = Simd::multiply_add(of_left, of_right[c], sums[r][c]);
        }
    }
}

// Lays out the cells from `at` on. Returns those whose values are no numbers, which are left out.
template <class Simd, class Cell>
uint64_t lay_out(const Attention & a, const char * k, const char * v, int64_t at, uint64_t seen_by_any, Scratch & scratch) {
    uint64_t odd = 0;
    for (int c = 0; c < BLOCK; c++) {
        float * const k_row = scratch.k_row + c * a.head_k, * const v_row = scratch.v + c * a.head_v;
        const bool here = seen_by_any >> c & 1;
        const char * const k_cell = k + (at + c) * a.k_cell, * const v_cell = v + (at + c) * a.v_cell;
        auto finite = Simd::all(0.0f);
        for (int d = 0; d < a.head_k; d += Simd::WIDTH) Simd::store(k_row + d, here ? Cell::load(k_cell, d) : Simd::all(0.0f));
        for (int d = 0; d < a.head_v; d += Simd::WIDTH) {
            const auto value = here ? Cell::load(v_cell, d) : Simd::all(0.0f);
            finite = Simd::multiply_add(value, Simd::all(0.0f), finite);
            Simd::store(v_row + d, value);
        }
        if (!(Simd::sum(finite) == 0.0f)) {
            odd |= uint64_t(1) << c;
            std::memset(v_row, 0, sizeof(float) * a.head_v);
        }
    }
    for (int c = 0; c < BLOCK; c += Simd::WIDTH)
        for (int d = 0; d < a.head_k; d += Simd::WIDTH) Simd::transpose(scratch.k_row + c * a.head_k + d, a.head_k, scratch.k + d * BLOCK + c, BLOCK);
    return odd;
}

struct Query : Head {
    const char * mask;
    uint64_t bits;  // cells of this block that are seen
};

// One block for ROWS queries, each of which sees some of its cells.
template <class Simd, class Cell, int ROWS>
void attend_block(const Attention & a, Query * const * queries, const char * v, int64_t at, int count, uint64_t odd, Scratch & scratch) {
    static_assert(ROWS <= TOGETHER);
    const float * left[ROWS];
    float factors[ROWS];
    for (int r = 0; r < ROWS; r++) left[r] = queries[r]->query;
    for (int c = 0; c < BLOCK; c += VECTORS * Simd::WIDTH) {
        typename Simd::Vector sums[ROWS][VECTORS];
        for (int r = 0; r < ROWS; r++)
            for (int n = 0; n < VECTORS; n++) sums[r][n] = Simd::all(0.0f);
        add_tile<Simd>(left, scratch.k + c, BLOCK, a.head_k, sums);
        for (int r = 0; r < ROWS; r++)
            for (int n = 0; n < VECTORS; n++) Simd::store(scratch.weights + r * BLOCK + c + n * Simd::WIDTH, sums[r][n]);
    }
    for (int r = 0; r < ROWS; r++) {
        Query & query = *queries[r];
        float * const added = scratch.added, * const weights = scratch.weights + r * BLOCK;
        seen<Simd>(query.mask, at, count, added);
        factors[r] = to_weights<Simd>(a, query.slope, query.bits, added, weights, query.largest, query.sum);
        left[r] = weights;
    }
    const auto add_columns = [&](int d, auto columns) {
        constexpr int COLUMNS = decltype(columns)::value;
        typename Simd::Vector sums[ROWS][COLUMNS];
        for (int r = 0; r < ROWS; r++)
            for (int n = 0; n < COLUMNS; n++)
                sums[r][n] = Simd::multiply(Simd::load(queries[r]->out + d + n * Simd::WIDTH), Simd::all(factors[r]));
        add_tile<Simd>(left, scratch.v + d, a.head_v, count, sums);
        for (int r = 0; r < ROWS; r++)
            for (int n = 0; n < COLUMNS; n++) Simd::store(queries[r]->out + d + n * Simd::WIDTH, sums[r][n]);
    };
    int d = 0;
    for (; d + VECTORS * Simd::WIDTH <= a.head_v; d += VECTORS * Simd::WIDTH) add_columns(d, Number<VECTORS>{});
    for (; d < a.head_v; d += Simd::WIDTH) add_columns(d, Number<1>{});
    const float one = 1.0f;
    for (int r = 0; r < ROWS; r++)
        if (const uint64_t here = odd & queries[r]->bits)
            for (d = 0; d < a.head_v; d += Simd::WIDTH)
                add_values<Simd, Cell, 1, 1>(a, v + at * a.v_cell, here, scratch.weights + r * BLOCK, &one, d, queries[r]);
}

// Queries `first` to `end` - 1 of a kv head: its heads of the first row, then of the next.
template <class Simd, class Cell>
void attend_queries(const Attention & a, int64_t stream, int64_t kv_head, int64_t first, int64_t end, Scratch & scratch) {
    const char * const k = k_of(a, stream, kv_head), * const v = v_of(a, stream, kv_head);
    Query queries[QUERIES];
    for (int64_t n = first; n < end; n++) {
        const int64_t row = n / a.heads_per_kv, head = kv_head * a.heads_per_kv + n % a.heads_per_kv;
        Query & query = queries[n - first];
        static_cast<Head &>(query) = new_head(a, stream, row, head, out_of(a, stream, row, head));
        query.mask = a.mask ? a.mask + stream % a.mask_streams * a.mask_stream + row * a.mask_row : nullptr;
    }
    for (int64_t at = 0; at < a.cells; at += BLOCK) {
        const int count = a.cells - at < BLOCK ? static_cast<int>(a.cells - at) : BLOCK;
        Query * seeing[QUERIES];
        int number = 0;
        uint64_t by_any = 0;
        for (int64_t n = 0; n < end - first; n++) {
            Query & query = queries[n];
            const bool same_row = n && query.mask == queries[n - 1].mask;
            query.bits = same_row ? queries[n - 1].bits : seen<Simd>(query.mask, at, count, scratch.added);
            if (query.bits) seeing[number++] = &query;
            by_any |= query.bits;
        }
        if (!by_any) continue;
        const uint64_t odd = lay_out<Simd, Cell>(a, k, v, at, by_any, scratch);
        int n = 0;
        for (; n + Simd::ROWS <= number; n += Simd::ROWS) attend_block<Simd, Cell, Simd::ROWS>(a, seeing + n, v, at, count, odd, scratch);
        for (; n < number; n++) attend_block<Simd, Cell, 1>(a, seeing + n, v, at, count, odd, scratch);
    }
    for (int64_t n = first; n < end; n++) finish_head<Simd>(a, kv_head * a.heads_per_kv + n % a.heads_per_kv, queries[n - first]);
}

// What one thread does of a call.
template <class Simd> void attend_many(const Attention & a, int64_t & taken) {
    const int64_t queries = a.rows * a.heads_per_kv, parts = (queries + QUERIES - 1) / QUERIES;
    Scratch scratch;
    for (int64_t n; (n = __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED)) < a.streams * a.kv_heads * parts;) {
        const int64_t first = (parts - 1 - n % parts) * QUERIES;  // the last ones see most
        const int64_t end = std::min(first + QUERIES, queries);
        const int64_t kv_head = n / parts % a.kv_heads, stream = n / parts / a.kv_heads;
        switch (a.cell_type) {
            case CellType::F16: attend_queries<Simd, typename Simd::F16>(a, stream, kv_head, first, end, scratch); break;
            case CellType::BF16: attend_queries<Simd, typename Simd::BF16>(a, stream, kv_head, first, end, scratch); break;
            case CellType::Q8_0: attend_queries<Simd, typename Simd::Q8_0>(a, stream, kv_head, first, end, scratch); break;
        }
    }
}

template <class Simd> void attend(const Attention & a, float * partials, int64_t & taken, int threads) {
    if (a.rows < MANY_ROWS) attend_few<Simd>(a, partials, taken, threads);
    else attend_many<Simd>(a, taken);
}

template <class Simd> constexpr AttentionFunctions ATTENTION_FUNCTIONS = {attend<Simd>, merge_row<Simd>};

}  // namespace
