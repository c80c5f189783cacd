// ggml's operations as steps.
#pragma once

#include "team.h"

#include <cstring>

inline float parameter(const ggml_tensor * op, int n) {
    float value;
    std::memcpy(&value, op->op_params + n, sizeof value);
    return value;
}

inline Access of_all(const ggml_tensor * t, bool writes) { return {t->data, ggml_nbytes(t), 0, 0, writes}; }

bool supports_attention(const ggml_tensor * op);
void plan_attention(const ggml_tensor * op, Scratch &, Plan &);

// Of weights that lie in a buffer of packed_type().
bool supports_product(const ggml_tensor * op);
void plan_product(const ggml_tensor * op, Scratch &, Plan &);

// Those that take the rows of activations one by one: none of them is worth a change of threads by itself.
bool supports_rows(const ggml_tensor * op);
void plan_rows(const ggml_tensor * op, Scratch &, Plan &);

// The type of buffers in which weights are packed; `device` is the one that asks for it.
ggml_backend_buffer_type_t packed_type(ggml_backend_dev_t device);
bool is_packed(ggml_backend_buffer_type_t);
bool any_packed();  // whether there is such a buffer now
bool weight_type(ggml_type, WeightType &);
