// Products of activations and quantised weights: one call of ggml's MUL_MAT.
//
// Weights are packed when they are loaded: 16 outputs lie together (a panel), so that one vector holds numbers of
// all of them. The bytes are about those of the file.
#pragma once

#include <cstddef>
#include <cstdint>

enum class WeightType { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K };

constexpr int OUTPUTS = 16;  // of a panel
constexpr int BLOCK_K = 32;  // inputs that are scaled together
constexpr int GROUP = 4;     // inputs whose products one instruction adds up
constexpr int GROUP_BYTES = GROUP * OUTPUTS;

// A panel is a row of superblocks: a head, then the blocks. A block begins with its scales, then has the codes.
struct Layout {
    int blocks;        // of a superblock
    int head_bytes;    // F16 of each output: scale, for some types the step of the minima too
    int scale_bytes;   // of a block
    int low_bytes;     // of a block: the lower 4 bits of each code, or all 8
    int high_bytes;    // of a block: the bits above

    constexpr int block_bytes() const { return scale_bytes + low_bytes + high_bytes; }
    constexpr int64_t super_bytes() const { return head_bytes + int64_t(blocks) * block_bytes(); }
};

constexpr Layout layout_of(WeightType type) {
    switch (type) {
        case WeightType::Q4_0: return {1, 0, 32, 256, 0};
        case WeightType::Q4_1: return {1, 0, 64, 256, 0};
        case WeightType::Q5_0: return {1, 0, 32, 256, 64};
        case WeightType::Q5_1: return {1, 0, 64, 256, 64};
        case WeightType::Q8_0: return {1, 0, 32, 512, 0};
        case WeightType::Q4_K: return {8, 64, 32, 256, 0};
        case WeightType::Q5_K: return {8, 64, 32, 256, 64};
        case WeightType::Q6_K: return {8, 32, 32, 256, 128};
    }
    return {};
}

inline int64_t panels(int64_t outputs) { return (outputs + OUTPUTS - 1) / OUTPUTS; }
inline int64_t panel_bytes(WeightType type, int64_t inputs) {
    const Layout layout = layout_of(type);
    return inputs / BLOCK_K / layout.blocks * layout.super_bytes();
}
inline int64_t packed_bytes(WeightType type, int64_t inputs, int64_t outputs) {
    return panels(outputs) * panel_bytes(type, inputs);
}

// from: as the file has them, [outputs][inputs].
void pack(WeightType type, int64_t inputs, int64_t outputs, const void * from, void * to);

// 32 activations as bytes, `scale` times which they are; and their sums.
struct ActivationBlock {
    float scale, scaled_sum;
    int32_t half_sums[2];
};

struct Activations {
    int8_t * bytes;            // [rows][inputs]
    ActivationBlock * blocks;  // [rows][inputs / BLOCK_K]
};

struct Product {
    const uint8_t * weights;  // as pack() leaves them
    float * out;              // [rows][outputs]
    int64_t inputs, outputs, rows;
    WeightType type;
};

// One for each instruction set.
struct ProductFunctions {
    void (*round_row)(const float * in, int64_t inputs, int8_t * bytes, ActivationBlock * blocks);
    // What one of `threads` threads does. taken: 0 before the first of them begins.
    void (*multiply)(const Product &, const Activations &, int64_t & taken, int threads);
};

extern const ProductFunctions PRODUCTS_AVX2, PRODUCTS_AVX512;
