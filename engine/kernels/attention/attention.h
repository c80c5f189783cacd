// Attention: one call of ggml's FLASH_ATTN_EXT, and who computes it.
#pragma once

#include <cstddef>
#include <cstdint>

enum class CellType { F16, BF16, Q8_0 };

// Strides are in bytes. A row is a token; its heads_per_kv heads share the K and V of one kv head.
struct Attention {
    const char * q;     // F32: [streams][heads][rows][head_k]
    const char * k;     // cell_type: [kv_streams][kv_heads][cells][head_k]
    const char * v;     // cell_type: [kv_streams][kv_heads][cells][head_v]
    const char * mask;  // F16: [mask_streams][rows][cells]; -inf: not seen. Null: every cell is seen.
    const float * sinks;  // [heads]; null: none
    char * out;           // F32: [streams][rows][heads][head_v]
    size_t q_row, q_head, q_stream;
    size_t k_cell, k_head, k_stream;
    size_t v_cell, v_head, v_stream;
    size_t mask_row, mask_stream;
    size_t out_head, out_row, out_stream;
    int64_t rows, streams, kv_streams, mask_streams, kv_heads, heads_per_kv, cells;
    int head_k, head_v;
    CellType cell_type;
    float scale;     // of a dot product
    float soft_cap;  // 0: none
    float max_bias;  // of ALiBi; 0: none
};

constexpr int MOST_HEAD = 576;  // numbers of K and V in a cell, for one head
constexpr int HEAD_STEP = 16;   // of which head sizes are multiples

// Not shared between files: each is compiled for its own instruction set.
namespace {

constexpr int MANY_ROWS = 64;  // of a stream, as in llama.cpp: from then on rows are computed in tiles
constexpr int CHUNK = 256;   // cells that one thread takes; the partial results are merged in their order
constexpr int TOGETHER = 4;  // heads at most, as far as registers go

// K and V of a kv head, from the first cell of the stream on: streams may share theirs.
inline const char * k_of(const Attention & a, int64_t stream, int64_t kv_head) { return a.k + stream / (a.streams / a.kv_streams) * a.k_stream + kv_head * a.k_head; }
inline const char * v_of(const Attention & a, int64_t stream, int64_t kv_head) { return a.v + stream / (a.streams / a.kv_streams) * a.v_stream + kv_head * a.v_head; }
inline int64_t heads(const Attention & a) { return a.kv_heads * a.heads_per_kv; }
inline int64_t tiles_per_kv(const Attention & a) { return (a.heads_per_kv + TOGETHER - 1) / TOGETHER; }
inline int64_t chunks(const Attention & a) { return (a.cells + CHUNK - 1) / CHUNK; }
inline int64_t tiles(const Attention & a) { return a.kv_heads * tiles_per_kv(a); }  // of a row
inline int64_t first_head(const Attention & a, int64_t tile) {
    return tile / tiles_per_kv(a) * a.heads_per_kv + a.heads_per_kv * (tile % tiles_per_kv(a)) / tiles_per_kv(a);
}

// Of so many numbers of a cell: Q8_0 has blocks of an F16 scale and 32 bytes.
inline size_t cell_bytes(const Attention & a, int numbers) { return a.cell_type == CellType::Q8_0 ? numbers / 32 * 34 : 2 * numbers; }

// Numbers that partial results need; 0 where there are none.
inline size_t partial_numbers(const Attention & a) {
    return chunks(a) == 1 || a.rows >= MANY_ROWS ? 0 : size_t(a.streams * a.rows * chunks(a) * heads(a) * (2 + a.head_v));
}

}  // namespace

// One for each instruction set.
struct AttentionFunctions {
    // What one of `threads` threads does. taken: 0 before the first of them begins. partials: partial_numbers().
    void (*attend)(const Attention &, float * partials, int64_t & taken, int threads);
    // Where there are partial results, for each row, after that.
    void (*merge_row)(const Attention &, float * partials, int64_t stream, int64_t row);
};

extern const AttentionFunctions ATTENTION_AVX2, ATTENTION_AVX512;
