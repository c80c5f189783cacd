#include "operations.h"
#include "ggml_interface.h"

#include <cstring>

namespace {

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

namespace {

Attention attention_of(const ggml_tensor * op) {
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
    return a;
}

void attend(Step & step, Scratch & scratch, int threads) {
    variant()->attention.attend(attention_of(step.node), scratch.partials.data(), step.taken, threads);
}

void merge_row(const Step & step, Scratch & scratch, int64_t row) {
    const Attention a = attention_of(step.node);
    variant()->attention.merge_row(a, scratch.partials.data(), row / a.rows, row % a.rows);
}

}  // namespace

void plan_attention(const ggml_tensor * op, Scratch & scratch, Plan & plan) {
    const Attention a = attention_of(op);
    const size_t partials = partial_numbers(a);
    if (scratch.partials.size() < partials) scratch.partials.resize(partials);
    const Access kept{&scratch.partials, 1, 0, 0, true}, mask = op->src[3] ? of_all(op->src[3], false) : Access{};
    plan.add({op, 0, nullptr, attend}, {of_all(op->src[0], false), of_all(op->src[1], false), of_all(op->src[2], false), mask, kept, of_all(op, true)});
    if (partials) plan.add({op, a.streams * a.rows, merge_row, nullptr}, {kept, {op->data, ggml_nbytes(op), op->nb[2], a.streams * a.rows, true}});
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

bool supports_product(const ggml_tensor * op) {
    const ggml_tensor *weights = op->src[0], *in = op->src[1];
    WeightType type;
    return weights->buffer && is_packed(weights->buffer->buft) && weight_type(weights->type, type) && ggml_n_dims(weights) == 2 &&
        in->type == GGML_TYPE_F32 && in->nb[0] == sizeof(float);
}

namespace {

void round_row(const Step & step, Scratch & scratch, int64_t row) {
    const ggml_tensor * in = step.node->src[1];
    const int64_t inputs = in->ne[0];
    const char * at = static_cast<const char *>(in->data) + row % in->ne[1] * in->nb[1] + row / in->ne[1] % in->ne[2] * in->nb[2] +
        row / in->ne[1] / in->ne[2] * in->nb[3];
    const Activations to = scratch.activations();
    variant()->products.round_row(reinterpret_cast<const float *>(at), inputs, to.bytes + row * inputs, to.blocks + row * (inputs / BLOCK_K));
}

void multiply(Step & step, Scratch & scratch, int threads) {
    const ggml_tensor * weights = step.node->src[0];
    Product p{};
    weight_type(weights->type, p.type);
    p.weights = static_cast<const uint8_t *>(weights->data);
    p.out = static_cast<float *>(step.node->data);
    p.inputs = weights->ne[0], p.outputs = weights->ne[1], p.rows = ggml_nrows(step.node->src[1]);
    variant()->products.multiply(p, scratch.activations(), step.taken, threads);
}

}  // namespace

void plan_product(const ggml_tensor * op, Scratch & scratch, Plan & plan) {
    const ggml_tensor * in = op->src[1];
    const int64_t rows = ggml_nrows(in);
    if (rows == 0) return;  // of a call without outputs
    const size_t numbers = rows * in->ne[0];
    if (scratch.rounded.size() < numbers) scratch.rounded.resize(numbers), scratch.blocks.resize(numbers / BLOCK_K);
    Access rounded{&scratch.rounded, 1, size_t(in->ne[0]), rows, true};
    if (plan.rounded != in) {  // consecutive products often have the same activations
        const bool one_stride = in->nb[2] == in->ne[1] * in->nb[1] && in->nb[3] == in->ne[2] * in->nb[2];
        plan.add({op, rows, round_row, nullptr}, {{in->data, ggml_nbytes(in), one_stride ? in->nb[1] : 0, rows, false}, rounded});
        plan.rounded = in;
    }
    rounded.stride = 0, rounded.writes = false;
    plan.add({op, 0, nullptr, multiply}, {rounded, of_all(op, true)});
}
