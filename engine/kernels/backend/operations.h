// ggml's operations as calls of the kernels.
#pragma once

#include "../attention/attention.h"
#include "../products/products.h"

#include <ggml-backend.h>

#include <vector>

struct Variant {
    const char * name;
    Attend attend;
    Multiply multiply;
    bool (*runs)();
};

extern const Variant VARIANTS[];
extern const int VARIANT_COUNT;
const Variant * variant();  // the fastest that runs here; null where none does

struct Scratch {
    int threads = 1;
    std::vector<float> partials;
    std::vector<int8_t> bytes;
    std::vector<ActivationBlock> blocks;

    Activations activations(const Product &);
};

bool supports_attention(const ggml_tensor * op);
void compute_attention(const ggml_tensor * op, Scratch &);

// Of weights that lie in a buffer of packed_type().
bool supports_product(const ggml_tensor * op);
// rounded: the tensor whose activations `scratch` holds.
void compute_product(const ggml_tensor * op, Scratch &, const ggml_tensor *& rounded);

// The type of buffers in which weights are packed; `device` is the one that asks for it.
ggml_backend_buffer_type_t packed_type(ggml_backend_dev_t device);
bool is_packed(ggml_backend_buffer_type_t);
bool weight_type(ggml_type, WeightType &);
