#include "operations.h"
#include "ggml_interface.h"

#include <cstring>

const Variant VARIANTS[] = {  // the fastest first
#if defined(__x86_64__)
    {"AVX-512 VNNI", attend_avx512, multiply_avx512,
     [] { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"); }},
    {"AVX-512", attend_avx512, multiply_avx2,
     [] { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512dq"); }},
    {"AVX2", attend_avx2, multiply_avx2, [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }},
#endif
};
const int VARIANT_COUNT = sizeof VARIANTS / sizeof VARIANTS[0];

const Variant * variant() {
    static const Variant * const chosen = [] {
        for (const Variant & each : VARIANTS)
            if (each.runs()) return &each;
        return static_cast<const Variant *>(nullptr);
    }();
    return chosen;
}

namespace {

float parameter(const ggml_tensor * op, int n) {
    float value;
    std::memcpy(&value, op->op_params + n, sizeof value);
    return value;
}

bool cell_type(const ggml_tensor * k, CellType & type) {
    switch (k->type) {
        case GGML_TYPE_F16: type = CellType::F16; return true;
        case GGML_TYPE_BF16: type = CellType::BF16; return true;
        case GGML_TYPE_Q8_0: type = CellType::Q8_0; return true;
        default: return false;
    }
}

bool is_head_size(int64_t size, const ggml_tensor * cells) {
    return size % HEAD_STEP == 0 && size % ggml_blck_size(cells->type) == 0 && size <= MOST_HEAD;
}

}  // namespace

bool supports_attention(const ggml_tensor * op) {
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
    CellType type;
    return q->type == GGML_TYPE_F32 && cell_type(k, type) && v->type == k->type &&
        is_head_size(k->ne[0], k) && is_head_size(v->ne[0], v) && k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3] &&
        q->nb[0] == sizeof(float) && k->nb[0] == ggml_type_size(k->type) && v->nb[0] == ggml_type_size(v->type) &&
        (!mask || (mask->type == GGML_TYPE_F16 && mask->ne[2] == 1 && mask->nb[0] == sizeof(ggml_fp16_t)));
}

void compute_attention(const ggml_tensor * op, Scratch & scratch) {
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3], *sinks = op->src[4];
    Attention a{};
    a.q = static_cast<const char *>(q->data);
    a.k = static_cast<const char *>(k->data);
    a.v = static_cast<const char *>(v->data);
    a.mask = mask ? static_cast<const char *>(mask->data) : nullptr;
    a.sinks = sinks ? static_cast<const float *>(sinks->data) : nullptr;
    a.out = static_cast<char *>(op->data);
    a.q_row = q->nb[1], a.q_head = q->nb[2], a.q_stream = q->nb[3];
    a.k_cell = k->nb[1], a.k_head = k->nb[2], a.k_stream = k->nb[3];
    a.v_cell = v->nb[1], a.v_head = v->nb[2], a.v_stream = v->nb[3];
    a.mask_row = mask ? mask->nb[1] : 0, a.mask_stream = mask ? mask->nb[3] : 0;
    a.out_head = op->nb[1], a.out_row = op->nb[2], a.out_stream = op->nb[3];
    a.rows = q->ne[1], a.streams = q->ne[3], a.kv_streams = k->ne[3], a.mask_streams = mask ? mask->ne[3] : 1;
    a.kv_heads = k->ne[2], a.heads_per_kv = q->ne[2] / k->ne[2], a.cells = k->ne[1];
    a.head_k = static_cast<int>(k->ne[0]), a.head_v = static_cast<int>(v->ne[0]);
    cell_type(k, a.cell_type);
    a.scale = parameter(op, 0), a.max_bias = parameter(op, 1), a.soft_cap = parameter(op, 2);
    const size_t partials = partial_numbers(a);
    if (scratch.partials.size() < partials) scratch.partials.resize(partials);
    variant()->attend(a, scratch.partials.data(), scratch.threads);
}

bool weight_type(ggml_type type, WeightType & to) {
    switch (type) {
        case GGML_TYPE_Q4_0: to = WeightType::Q4_0; return true;
        case GGML_TYPE_Q4_1: to = WeightType::Q4_1; return true;
        case GGML_TYPE_Q5_0: to = WeightType::Q5_0; return true;
        case GGML_TYPE_Q5_1: to = WeightType::Q5_1; return true;
        case GGML_TYPE_Q8_0: to = WeightType::Q8_0; return true;
        case GGML_TYPE_Q4_K: to = WeightType::Q4_K; return true;
        case GGML_TYPE_Q5_K: to = WeightType::Q5_K; return true;
        case GGML_TYPE_Q6_K: to = WeightType::Q6_K; return true;
        default: return false;
    }
}

Activations Scratch::activations(const Product & p) {
    const size_t numbers = p.rows * p.inputs;
    if (bytes.size() < numbers) bytes.resize(numbers);
    if (blocks.size() < numbers / BLOCK_K) blocks.resize(numbers / BLOCK_K);
    return {bytes.data(), blocks.data()};
}

bool supports_product(const ggml_tensor * op) {
    const ggml_tensor *weights = op->src[0], *in = op->src[1];
    WeightType type;
    return weights->buffer && is_packed(weights->buffer->buft) && weight_type(weights->type, type) && ggml_n_dims(weights) == 2 &&
        in->type == GGML_TYPE_F32 && in->nb[0] == sizeof(float);
}

void compute_product(const ggml_tensor * op, Scratch & scratch, const ggml_tensor *& rounded) {
    const ggml_tensor *weights = op->src[0], *in = op->src[1];
    Product p{};
    weight_type(weights->type, p.type);
    p.weights = static_cast<const uint8_t *>(weights->data);
    p.inputs = weights->ne[0], p.outputs = weights->ne[1];
    p.in_row = in->nb[1];
    const bool one_step = in->nb[2] == in->ne[1] * in->nb[1] && in->nb[3] == in->ne[2] * in->nb[2];  // between all its rows
    p.rows = one_step ? ggml_nrows(in) : in->ne[1];
    if (p.rows == 0) return;  // of a call without outputs
    for (int64_t n = 0; n < ggml_nrows(in) / p.rows; n++) {
        p.in = static_cast<const char *>(in->data) + n % in->ne[2] * in->nb[2] + n / in->ne[2] * in->nb[3];
        p.out = static_cast<float *>(op->data) + n * p.rows * p.outputs;
        variant()->multiply(p, scratch.activations(p), !one_step || rounded != in, scratch.threads);
    }
    rounded = one_step ? in : nullptr;
}
