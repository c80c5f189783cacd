// A ggml backend that takes from llama.cpp what is slow there: attention, products with quantised weights, which it
// packs when they are loaded, and the small operations between them. It leaves everything else to it.
//
// It is a device of type ACCEL, as BLAS is: each context made after it was loaded asks it about each operation, and
// runs those that it supports between the processor's, on the same memory and the same threads.
#include "ggml_interface.h"
#include "operations.h"

#include <atomic>
#include <cstring>

namespace {

constexpr const char * NAME = "medusaq";
constexpr const char * DESCRIPTION = "attention, products with quantised weights, and what lies between";

std::atomic<bool> enabled{true};
std::atomic<int64_t> attentions{0};  // calls of FLASH_ATTN_EXT that were computed

ggml_status compute(ggml_backend_t backend, ggml_cgraph * graph) {
    Scratch & scratch = *static_cast<Scratch *>(backend->context);
    Plan plan;
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        if (ggml_is_empty(node)) continue;
        if (node->op == GGML_OP_FLASH_ATTN_EXT) plan_attention(node, scratch, plan), attentions++;
        else if (node->op == GGML_OP_MUL_MAT) plan_product(node, scratch, plan);
        else plan_rows(node, scratch, plan);
    }
    plan.run(scratch);
    return GGML_STATUS_SUCCESS;
}

ggml_guid_t guid() {
    static ggml_guid id = {0x6d, 0x65, 0x64, 0x75, 0x73, 0x61, 0x71, 0x2d, 0x6b, 0x65, 0x72, 0x6e, 0x65, 0x6c, 0x73, 0x31};
    return &id;
}

bool supports(ggml_backend_dev_t, const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_NONE:
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE: return true;  // they compute nothing
        case GGML_OP_FLASH_ATTN_EXT: return enabled && supports_attention(op);
        case GGML_OP_MUL_MAT: return supports_product(op);
        default: return enabled && supports_rows(op);
    }
}

void properties(ggml_backend_dev_t, ggml_backend_dev_props * props) {
    *props = {};
    props->name = NAME;
    props->description = DESCRIPTION;
    props->type = GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

ggml_backend_t make_backend(ggml_backend_dev_t registered, const char *);

// buffer_type: of the device. The registered one names that of weights; that of a backend, whose results the
// processor's operations read, is the processor's.
ggml_backend_device make_device(ggml_backend_reg_t reg, ggml_backend_buffer_type_t (*buffer_type)(ggml_backend_dev_t)) {
    ggml_backend_device_i functions{};
    functions.get_name = [](ggml_backend_dev_t) { return NAME; };
    functions.get_description = [](ggml_backend_dev_t) { return DESCRIPTION; };
    functions.get_memory = [](ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = 0; };
    functions.get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; };
    functions.get_props = properties;
    functions.init_backend = make_backend;
    functions.get_buffer_type = buffer_type;
    functions.supports_op = supports;
    functions.supports_buft = [](ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
        return ggml_backend_buft_is_host(type) || is_packed(type);
    };
    return ggml_backend_device{functions, reg, nullptr};
}

ggml_backend_dev_t registered_device(ggml_backend_reg_t reg, size_t) {
    static ggml_backend_device only = make_device(reg, [](ggml_backend_dev_t device) {
        return enabled ? packed_type(device) : ggml_backend_cpu_buffer_type();
    });
    return &only;
}

// One for each context of llama.cpp.
ggml_backend_t make_backend(ggml_backend_dev_t registered, const char *) {
    static ggml_backend_device computing = make_device(registered->reg, [](ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); });
    ggml_backend_i functions{};
    functions.get_name = [](ggml_backend_t) { return NAME; };
    functions.free = [](ggml_backend_t backend) {
        delete static_cast<Scratch *>(backend->context);
        delete backend;
    };
    functions.graph_compute = compute;
    return new ggml_backend{guid(), functions, &computing, new Scratch};
}

void set_threads(ggml_backend_t backend, int threads) { static_cast<Scratch *>(backend->context)->threads = threads; }

void * function(ggml_backend_reg_t, const char * name) {
    return std::strcmp(name, "ggml_backend_set_n_threads") == 0 ? reinterpret_cast<void *>(set_threads) : nullptr;
}

}  // namespace

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

// Called by ggml_backend_load().
EXPORTED ggml_backend_reg_t ggml_backend_init() {
    static ggml_backend_reg reg{
        INTERFACE_VERSION,
        {[](ggml_backend_reg_t) { return NAME; }, [](ggml_backend_reg_t) -> size_t { return variant() ? 1 : 0; }, registered_device, function},
        nullptr,
    };
    return &reg;
}

// The instruction set that is used; null where none fits.
EXPORTED const char * medusaq_kernels_variant() { return variant() ? variant()->name : nullptr; }

// For tests and comparisons. Returns whether this processor has it.
EXPORTED int medusaq_kernels_use(const char * name) {
    const Variant * const found = variant_named(name);
    if (found) use(found);
    return found != nullptr;
}

// Whether models that are loaded, and graphs that are built, from now on use the kernels; they do at first.
EXPORTED void medusaq_kernels_enable(int on) { enabled = on != 0; }

// How often they have computed attention in this process.
EXPORTED int64_t medusaq_kernels_attentions() { return attentions; }

// For tests: one call by the named variant. Returns whether this processor has it.
EXPORTED int medusaq_attend(const char * name, const Attention * call, int threads) {
    const Variant * const by = variant_named(name);
    if (!by) return 0;
    std::vector<float> partials(partial_numbers(*call));
    int64_t taken = 0;
#pragma omp parallel num_threads(threads)
    by->attention.attend(*call, partials.data(), taken, threads);
    for (int64_t row = 0; !partials.empty() && row < call->streams * call->rows; row++)
        by->attention.merge_row(*call, partials.data(), row / call->rows, row % call->rows);
    return 1;
}

// The same for a product. weights: as a file has them. in: [rows][row_numbers].
EXPORTED int medusaq_multiply(const char * name, const Product * call, const float * in, size_t row_numbers, int threads) {
    const Variant * const by = variant_named(name);
    if (!by) return 0;
    std::vector<uint8_t> packed(packed_bytes(call->type, call->inputs, call->outputs));
    pack(call->type, call->inputs, call->outputs, call->weights, packed.data());
    std::vector<int8_t> bytes(call->rows * call->inputs);
    std::vector<ActivationBlock> blocks(bytes.size() / BLOCK_K);
    for (int64_t row = 0; row < call->rows; row++)
        by->products.round_row(in + row * row_numbers, call->inputs, &bytes[row * call->inputs], &blocks[row * (call->inputs / BLOCK_K)]);
    Product with_packed = *call;
    with_packed.weights = packed.data();
    int64_t taken = 0;
#pragma omp parallel num_threads(threads)
    by->products.multiply(with_packed, {bytes.data(), blocks.data()}, taken, threads);
    return 1;
}

}
