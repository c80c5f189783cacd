#include "operations.h"
#include "ggml_interface.h"

#include <cmath>
#include <cstring>

namespace {

// A token is an element of the last dimension. Rows of several heads lie in the one before.
int token_dimension(const ggml_tensor * t) { return t->ne[2] > 1 ? 2 : 1; }

Access of_tokens(const ggml_tensor * t, int dimension, bool writes) {
    return {t->data, ggml_nbytes(t), t->nb[dimension], t->ne[dimension], writes};
}

const float * row(const ggml_tensor * t, int64_t n, int64_t further = 0) {
    return reinterpret_cast<const float *>(static_cast<const char *>(t->data) + n * t->nb[1] + further * t->nb[2]);
}

float * out_row(const ggml_tensor * t, int64_t n, int64_t further = 0) { return const_cast<float *>(row(t, n, further)); }

const RowFunctions & functions() { return variant()->rows; }

// f(row of x, row of out, dimensions 1 and 2) for each row of a token.
template <class F> void rows_of_token(const ggml_tensor * out, int64_t token, F f) {
    if (token_dimension(out) == 1) return f(token, 0);
    for (int64_t head = 0; head < out->ne[1]; head++) f(head, token);
}

void normalise(const Step & step, Scratch &, int64_t token) {
    const ggml_tensor * op = step.node, * x = op->src[0];
    rows_of_token(op, token, [&](int64_t i, int64_t j) { functions().normalise(row(x, i, j), parameter(op, 0), op->ne[0], out_row(op, i, j)); });
}

template <auto FUNCTION> void combine(const Step & step, Scratch &, int64_t token) {
    const ggml_tensor * op = step.node, * x = op->src[0], * y = op->src[1];
    rows_of_token(op, token, [&](int64_t i, int64_t j) {
        (functions().*FUNCTION)(row(x, i, j), row(y, i % y->ne[1], j % y->ne[2]), op->ne[0], out_row(op, i, j));
    });
}

void gate(const Step & step, Scratch &, int64_t token) {
    const ggml_tensor * op = step.node, * x = op->src[0], * y = op->src[1];
    const int64_t count = op->ne[0], later = op->op_params[1] ? 0 : count;  // whether the halves are swapped
    const float * in = row(x, token);
    functions().gate(y ? in : in + count - later, y ? row(y, token) : in + later, count, out_row(op, token));
}

// Cosines and sines of a token: the angle of pair n is position * base^(-2n / dimensions), scaled.
void find_angles(const Step & step, Scratch & scratch, int64_t token) {
    const ggml_tensor * op = step.node;
    const int pairs = op->op_params[1] / 2;
    const float base = parameter(op, 5), scale = parameter(op, 6), size = parameter(op, 8);
    const float * factors = op->src[2] ? static_cast<const float *>(op->src[2]->data) : nullptr;
    const float step_of_pair = std::pow(base, -1.0f / pairs);
    float angle = static_cast<float>(static_cast<const int32_t *>(op->src[1]->data)[token]);
    float * const cosines = scratch.angles.data() + 2 * pairs * token, * const sines = cosines + pairs;
    for (int n = 0; n < pairs; n++, angle *= step_of_pair) {
        const float here = scale * (factors ? angle / factors[n] : angle);
        cosines[n] = std::cos(here) * size, sines[n] = std::sin(here) * size;
    }
}

void rotate(const Step & step, Scratch & scratch, int64_t token) {
    const ggml_tensor * op = step.node, * x = op->src[0];
    const int numbers = op->op_params[1], pairs = numbers / 2;
    const float * const cosines = scratch.angles.data() + 2 * pairs * token;
    for (int64_t head = 0; head < op->ne[1]; head++) {
        const float * in = row(x, head, token);
        float * out = out_row(op, head, token);
        functions().rotate(in, cosines, cosines + pairs, pairs, op->op_params[2] == GGML_ROPE_TYPE_NEOX ? pairs : 1, out);
        if (in != out) std::memcpy(out + numbers, in + numbers, sizeof(float) * (op->ne[0] - numbers));
    }
}

int64_t index(const ggml_tensor * indices, int64_t n) {
    const char * at = static_cast<const char *>(indices->data) + n * indices->nb[0];
    return indices->type == GGML_TYPE_I64 ? *reinterpret_cast<const int64_t *>(at) : *reinterpret_cast<const int32_t *>(at);
}

void store(const Step & step, Scratch &, int64_t token) {
    const ggml_tensor * op = step.node;
    uint16_t * const to = reinterpret_cast<uint16_t *>(static_cast<char *>(op->data) + index(op->src[1], token) * op->nb[1]);
    (op->type == GGML_TYPE_F16 ? functions().to_f16 : functions().to_bf16)(row(op->src[0], token), op->ne[0], to);
}

void choose(const Step & step, Scratch &, int64_t token) {
    const ggml_tensor * op = step.node;
    std::memcpy(out_row(op, token), row(op->src[0], index(op->src[1], token)), sizeof(float) * op->ne[0]);
}

bool same_angles(const ggml_tensor * a, const ggml_tensor * b) {
    return a && a->src[1] == b->src[1] && a->src[2] == b->src[2] && std::memcmp(a->op_params, b->op_params, sizeof a->op_params) == 0;
}

// Its rows are contiguous, and it has no fourth dimension.
bool is_rows(const ggml_tensor * t) { return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float) && t->ne[3] == 1; }

bool is_matrix(const ggml_tensor * t) { return is_rows(t) && t->ne[2] == 1; }

bool is_repeated(const ggml_tensor * y, const ggml_tensor * x) {
    return is_rows(y) && y->ne[0] == x->ne[0] && (y->ne[1] == x->ne[1] || y->ne[1] == 1) && (y->ne[2] == x->ne[2] || y->ne[2] == 1);
}

bool is_index(const ggml_tensor * t) { return (t->type == GGML_TYPE_I32 || t->type == GGML_TYPE_I64) && ggml_nrows(t) == 1; }

}  // namespace

bool supports_rows(const ggml_tensor * op) {
    if (!any_packed()) return false;  // the products lie between them, and are the processor's
    const ggml_tensor * x = op->src[0], * y = op->src[1];
    for (const ggml_tensor * src : op->src)
        if (src && src->buffer && is_packed(src->buffer->buft)) return false;
    switch (op->op) {
        case GGML_OP_RMS_NORM: return is_rows(op) && is_rows(x);
        case GGML_OP_ADD:
        case GGML_OP_MUL: return is_rows(op) && is_rows(x) && is_repeated(y, x);
        case GGML_OP_GLU: return ggml_get_glu_op(op) == GGML_GLU_OP_SWIGLU && is_matrix(op) && is_matrix(x) && (!y || is_matrix(y));
        case GGML_OP_ROPE:
            return is_rows(op) && is_rows(x) && (op->op_params[2] == GGML_ROPE_TYPE_NORMAL || op->op_params[2] == GGML_ROPE_TYPE_NEOX) &&
                op->op_params[1] <= MOST_ROTATED && op->op_params[15] == 0 && parameter(op, 7) == 0.0f;  // no offset, no YaRN
        case GGML_OP_SET_ROWS:
            return (op->type == GGML_TYPE_F16 || op->type == GGML_TYPE_BF16) && is_matrix(x) && is_index(y) && op->ne[2] == 1 && op->ne[3] == 1;
        case GGML_OP_GET_ROWS: return is_matrix(op) && is_matrix(x) && is_index(y);
        default: return false;
    }
}

void plan_rows(const ggml_tensor * op, Scratch & scratch, Plan & plan) {
    const ggml_tensor * x = op->src[0], * y = op->src[1];
    const int dimension = op->op == GGML_OP_ROPE ? 2 : token_dimension(op);
    const int64_t tokens = op->op == GGML_OP_SET_ROWS ? x->ne[1] : op->ne[dimension];
    const auto add = [&](void (*of_token)(const Step &, Scratch &, int64_t), Access first, Access second, Access out) {
        plan.add({op, tokens, of_token, nullptr}, {first, second, out});
    };
    const Access out = of_tokens(op, dimension, true);
    Access angles{&scratch.angles, 1, sizeof(float) * op->op_params[1], tokens, false};
    switch (op->op) {
        case GGML_OP_RMS_NORM: return add(normalise, of_tokens(x, dimension, false), {}, out);
        case GGML_OP_ADD:
        case GGML_OP_MUL:
            return add(op->op == GGML_OP_ADD ? combine<&RowFunctions::add> : combine<&RowFunctions::multiply>, of_tokens(x, dimension, false),
                       y->ne[dimension] == tokens ? of_tokens(y, dimension, false) : of_all(y, false), out);
        case GGML_OP_GLU: return add(gate, of_tokens(x, 1, false), y ? of_tokens(y, 1, false) : Access{}, out);
        case GGML_OP_ROPE:
            if (!same_angles(plan.angles, op)) {
                const size_t numbers = op->op_params[1] * tokens;
                if (scratch.angles.size() < numbers) scratch.angles.resize(numbers);
                angles.writes = true;
                add(find_angles, {}, {}, angles);
                angles.writes = false;
                plan.angles = op;
            }
            return add(rotate, of_tokens(x, 2, false), angles, out);
        case GGML_OP_SET_ROWS: return add(store, of_tokens(x, 1, false), {}, of_all(op, true));
        case GGML_OP_GET_ROWS: return add(choose, of_all(x, false), {}, out);
        default: return;
    }
}
