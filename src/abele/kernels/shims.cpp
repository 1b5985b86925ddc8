// What AOTInductor's generated code calls for the operators of abele/ops.
//
// The signatures follow from the operators' schemas: an optional tensor is a pointer to a handle, a
// list is a pointer and a length, each result is a handle to fill in, null where it is not wanted.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include "conv.h"

namespace {

// Stops at the first failure and keeps it.
struct Calls {
  AOTITorchError error = AOTI_TORCH_SUCCESS;
  bool ok(AOTITorchError result) {
    if (error == AOTI_TORCH_SUCCESS) error = result;
    return error == AOTI_TORCH_SUCCESS;
  }

  const int64_t* sizes(AtenTensorHandle tensor) {
    int64_t* result = nullptr;
    return ok(aoti_torch_get_sizes(tensor, &result)) ? result : nullptr;
  }

  template <class T = float>
  T* data(AtenTensorHandle tensor) {
    bool contiguous = false;
    void* result = nullptr;
    if (!ok(aoti_torch_is_contiguous(tensor, &contiguous))) return nullptr;
    if (!ok(contiguous ? AOTI_TORCH_SUCCESS : AOTI_TORCH_FAILURE)) return nullptr;
    return ok(aoti_torch_get_data_ptr(tensor, &result)) ? static_cast<T*>(result) : nullptr;
  }

  template <class T = float>
  T* create(int64_t dims, const int64_t* sizes, int32_t dtype, AtenTensorHandle* result) {
    int64_t strides[4], stride = 1;
    for (int64_t i = dims - 1; i >= 0; --i) strides[i] = stride, stride *= sizes[i];
    const int32_t cpu = aoti_torch_device_type_cpu();
    if (!ok(aoti_torch_empty_strided(dims, sizes, strides, dtype, cpu, 0, result))) return nullptr;
    return data<T>(*result);
  }

  int threads(int64_t floats, int64_t multiply_adds) {
    uint32_t available = 1;
    if (!ok(torch_get_num_threads(&available))) return 1;
    return abele_threads(floats, multiply_adds, static_cast<int>(available));
  }
};

abele::Conv describe(const int64_t* x, const int64_t* weight, const int64_t* stride,
                     const int64_t* padding) {
  return abele::Conv({x[0], x[1], x[2], x[3], weight[0], weight[2], weight[3], stride[0],
                      stride[1], padding[0], padding[1], 0, 1.0});
}

}  // namespace

extern "C" {

AOTITorchError aoti_torch_cpu_few_channel_conv(AtenTensorHandle x, AtenTensorHandle weight,
                                               AtenTensorHandle* bias, const int64_t* stride,
                                               int64_t, const int64_t* padding, int64_t,
                                               AtenTensorHandle* result) {
  Calls calls;
  const int64_t *x_sizes = calls.sizes(x), *weight_sizes = calls.sizes(weight);
  if (calls.error) return calls.error;
  const abele::Conv conv = describe(x_sizes, weight_sizes, stride, padding);
  const int64_t sizes[] = {conv.images, conv.out_channels, conv.out_height, conv.out_width};
  float* y = calls.create(4, sizes, aoti_torch_dtype_float32(), result);
  const float *x_data = calls.data(x), *weight_data = calls.data(weight);
  const float* bias_data = bias == nullptr ? nullptr : calls.data(*bias);
  const int threads = calls.threads(0, conv.multiply_adds());
  if (calls.error) return calls.error;
  return abele_conv_forward(&conv, x_data, weight_data, bias_data, y, threads);
}

AOTITorchError aoti_torch_cpu_few_channel_conv_backward(
    AtenTensorHandle grad, AtenTensorHandle x, AtenTensorHandle weight, const int64_t* stride,
    int64_t, const int64_t* padding, int64_t, const int32_t*, int64_t, AtenTensorHandle* grad_x,
    AtenTensorHandle* grad_weight, AtenTensorHandle* grad_bias) {
  Calls calls;
  const int64_t *x_sizes = calls.sizes(x), *weight_sizes = calls.sizes(weight);
  if (calls.error) return calls.error;
  const abele::Conv conv = describe(x_sizes, weight_sizes, stride, padding);
  const int32_t f32 = aoti_torch_dtype_float32();
  float* dx = grad_x == nullptr ? nullptr : calls.create(4, x_sizes, f32, grad_x);
  float* dw = grad_weight == nullptr ? nullptr : calls.create(4, weight_sizes, f32, grad_weight);
  float* db = grad_bias == nullptr ? nullptr : calls.create(1, weight_sizes, f32, grad_bias);
  const float *grad_data = calls.data(grad), *x_data = calls.data(x);
  const float* weight_data = calls.data(weight);
  const int64_t passes = (dx != nullptr) + (dw != nullptr);
  const int threads = calls.threads(0, passes * conv.multiply_adds());
  if (calls.error) return calls.error;
  return abele_conv_backward(&conv, grad_data, x_data, weight_data, dx, dw, db, threads);
}

AOTITorchError aoti_torch_cpu_max_pool(AtenTensorHandle x, AtenTensorHandle* values,
                                       AtenTensorHandle* indices) {
  Calls calls;
  const int64_t* sizes = calls.sizes(x);
  if (calls.error) return calls.error;
  const AbelePool pool = {sizes[0], sizes[1], sizes[2], sizes[3], 0};
  const int64_t out_sizes[] = {sizes[0], sizes[1], sizes[2] / 2, sizes[3] / 2};
  const int32_t f32 = aoti_torch_dtype_float32(), i64 = aoti_torch_dtype_int64();
  float* y = calls.create(4, out_sizes, f32, values);
  int64_t* index_data = calls.create<int64_t>(4, out_sizes, i64, indices);
  const float* x_data = calls.data(x);
  const int threads = calls.threads(sizes[0] * sizes[1] * sizes[2] * sizes[3], 0);
  if (calls.error) return calls.error;
  return abele_max_pool(&pool, x_data, y, nullptr, index_data, threads);
}

}  // extern "C"
