// The tables of functions through which ggml calls a backend: version 2 of its interface, as of ggml 0.25.
//
// ggml's headers, which are installed with it, leave these out. build.py compares the version of ggml's library.
// What is not used here has the type Unused.
#pragma once

#include <ggml-backend.h>

using Unused = void (*)();

constexpr int INTERFACE_VERSION = 2;

struct ggml_backend_buffer_type_i {
    const char * (*get_name)(ggml_backend_buffer_type_t);
    ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t, size_t size);
    size_t (*get_alignment)(ggml_backend_buffer_type_t);
    Unused get_max_size;
    size_t (*get_alloc_size)(ggml_backend_buffer_type_t, const ggml_tensor *);
    Unused is_host;
};

struct ggml_backend_buffer_type {
    ggml_backend_buffer_type_i iface;
    ggml_backend_dev_t device;
    void * context;
};

struct ggml_backend_buffer_i {
    void (*free_buffer)(ggml_backend_buffer_t);
    void * (*get_base)(ggml_backend_buffer_t);
    Unused init_tensor, memset_tensor;
    void (*set_tensor)(ggml_backend_buffer_t, ggml_tensor *, const void * data, size_t offset, size_t size);
    Unused get_tensor, set_tensor_2d, get_tensor_2d, cpy_tensor;
    void (*clear)(ggml_backend_buffer_t, uint8_t value);
    Unused reset;
};

struct ggml_backend_buffer {
    ggml_backend_buffer_i iface;
    ggml_backend_buffer_type_t buft;
    void * context;
    size_t size;
    enum ggml_backend_buffer_usage usage;
};

extern "C" ggml_backend_buffer_t ggml_backend_buffer_init(ggml_backend_buffer_type_t, ggml_backend_buffer_i, void * context, size_t size);

struct ggml_backend_i {
    const char * (*get_name)(ggml_backend_t);
    void (*free)(ggml_backend_t);
    Unused set_tensor_async, get_tensor_async, set_tensor_2d_async, get_tensor_2d_async, cpy_tensor_async;
    Unused synchronize;
    Unused graph_plan_create, graph_plan_free, graph_plan_update, graph_plan_compute;
    ggml_status (*graph_compute)(ggml_backend_t, ggml_cgraph *);
    Unused event_record, event_wait, graph_optimize;
};

struct ggml_backend {
    ggml_guid_t guid;
    ggml_backend_i iface;
    ggml_backend_dev_t device;
    void * context;
};

struct ggml_backend_device_i {
    const char * (*get_name)(ggml_backend_dev_t);
    const char * (*get_description)(ggml_backend_dev_t);
    void (*get_memory)(ggml_backend_dev_t, size_t * free, size_t * total);
    enum ggml_backend_dev_type (*get_type)(ggml_backend_dev_t);
    void (*get_props)(ggml_backend_dev_t, ggml_backend_dev_props *);
    ggml_backend_t (*init_backend)(ggml_backend_dev_t, const char * params);
    ggml_backend_buffer_type_t (*get_buffer_type)(ggml_backend_dev_t);
    Unused get_host_buffer_type, buffer_from_host_ptr;
    bool (*supports_op)(ggml_backend_dev_t, const ggml_tensor *);
    bool (*supports_buft)(ggml_backend_dev_t, ggml_backend_buffer_type_t);
    Unused offload_op;
    Unused event_new, event_free, event_synchronize;
};

struct ggml_backend_device {
    ggml_backend_device_i iface;
    ggml_backend_reg_t reg;
    void * context;
};

struct ggml_backend_reg_i {
    const char * (*get_name)(ggml_backend_reg_t);
    size_t (*get_device_count)(ggml_backend_reg_t);
    ggml_backend_dev_t (*get_device)(ggml_backend_reg_t, size_t);
    void * (*get_proc_address)(ggml_backend_reg_t, const char *);
};

struct ggml_backend_reg {
    int api_version;
    ggml_backend_reg_i iface;
    void * context;
};
