// Every function and structure of the kernels' library, for whoever calls it.
//
// This stays plain C that includes nothing but <stdint.h>, and the library needs neither torch nor
// Python: link its objects, or open the shared object, and call. binding.py reads structures, enums,
// callbacks and functions in the forms that stand here; a test counts them.
//
// Tensors are dense and of float32 unless said otherwise. Images are [images, channels, height,
// width]; with `channels_last` that is their shape, and memory has [images, height, width,
// channels]. Weights of convolutions are [out, in, height, width]. Results are written by the
// callee into memory of the caller, and may not overlap an argument unless a comment says so.
//
// `threads`: how many may work, at least 1; `abele_threads` says how many are worth waking. Kernels
// keep up to 64 MiB for each calling thread between calls, and free it when the thread ends.
#ifndef ABELE_ABI_H
#define ABELE_ABI_H

#include <stdint.h>

#ifdef __GNUC__
#define ABELE_API __attribute__((visibility("default")))
#else
#define ABELE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// What functions return; without ABELE_OK their results mean nothing, and without code none are
// written.
enum { ABELE_OK = 0, ABELE_NO_MEMORY = 1, ABELE_NO_CODE = 2 };

// How many of `available` threads a pass over this many floats with this many multiply-adds keeps
// busy; at least 1.
ABELE_API int abele_threads(int64_t floats, int64_t multiply_adds, int available);

// Writes a checksum of `count` pieces of memory in their order, of `bytes[i]` bytes each. It is the
// same for any number of threads; that of other contents is the same with a probability of 2^-64.
ABELE_API int abele_checksum(const void* const* memory, const int64_t* bytes, int64_t count,
                             int64_t* sum, int threads);

// -- convolution, without groups and dilation --------------------------------------------------

typedef struct AbeleConv {
  int64_t images, in_channels, in_height, in_width;
  int64_t out_channels, kernel_height, kernel_width;
  int64_t stride_height, stride_width, pad_height, pad_width;
  int64_t channels_last;  // 0 or 1
  double slope;           // of an activation of the result below zero; 1 for none
  int64_t type;           // of images and weights; but for Winograd's algorithm, ABELE_FLOAT32
} AbeleConv;

// How many of `available` threads a convolution of images with their channels apart keeps busy, or
// its backward; at least 1.
ABELE_API int abele_conv_threads(const AbeleConv* conv, int available);

// With `channels_last` there is code for stride 1, kernels of 1x1, 3x3 and 5x5, padding that keeps
// the size, and rows of at least 16 pixels (8 without AVX-512).
//
// y = activation(x * weight + bias); `bias` may be null.
ABELE_API int abele_conv_forward(const AbeleConv* conv, const float* x, const float* weight,
                                 const float* bias, float* y, int threads);

// Gradients of x, weight and bias from `grad`, that of x * weight + bias; those that are null are
// not computed. With `channels_last` there is code for that of the weight where the outputs are a
// multiple of 8 and the inputs too, or one; for 1x1 also where only the inputs are.
ABELE_API int abele_conv_backward(const AbeleConv* conv, const float* grad, const float* x,
                                  const float* weight, float* grad_x, float* grad_weight,
                                  float* grad_bias, int threads);

// The sizes of blocks decide about memory. Of tiles with 2x2 outputs: tiles of a block; floats and tiles
// of a chunk of the weight gradient, floats and number of its partial sums. Channels from which on rows
// are padded. With 4x4 outputs: tiles of a chunk, floats and number of partial sums. Input channels of a
// panel of weights, and of a task of the weight gradient. Tiles at most, and floats of weights and panels of
// a thread at least, where each thread has panels of its own.
enum {
  ABELE_WINOGRAD_BLOCK = 112,
  ABELE_WINOGRAD_CHUNK_FLOATS = 65536,
  ABELE_WINOGRAD_LEAST_CHUNK = 64,
  ABELE_WINOGRAD_MOST_CHUNK = 256,
  ABELE_WINOGRAD_PARTS_FLOATS = 4194304,
  ABELE_WINOGRAD_MOST_PARTS = 16,
  ABELE_WINOGRAD_LONG_ROW = 64,
  ABELE_WINOGRAD_LARGE_CHUNK = 128,
  ABELE_WINOGRAD_LARGE_PARTS_FLOATS = 1310720,
  ABELE_WINOGRAD_LARGE_MOST_PARTS = 4,
  ABELE_WINOGRAD_DEPTH = 128,
  ABELE_WINOGRAD_TASK_ROWS = 64,
  ABELE_WINOGRAD_FEW_TILES = 256,
  ABELE_WINOGRAD_MANY_WEIGHTS = 262144,
  ABELE_WINOGRAD_OWN_PANELS = 4
};

// The same two for many channels, by Winograd's F(2x2, 3x3): less than half of the products of the
// plain sum, with errors of the same size. Infinities may become NaN, and one pixel at a border that
// is not finite reaches all nine gradients of a weight. There is code for channels-last images,
// kernels of 3x3, stride 1, and the same padding of 0, 1 or 2 for rows and columns. bfloat16 images and
// weights are computed by F(4x4, 3x3) in float32, without the gradient of the bias, which is float32.
ABELE_API int abele_winograd_forward(const AbeleConv* conv, const void* x, const void* weight,
                                     const float* bias, void* y, int threads);

ABELE_API int abele_winograd_backward(const AbeleConv* conv, const void* grad, const void* x,
                                      const void* weight, void* grad_x, void* grad_weight,
                                      float* grad_bias, int threads);

// Forward in two steps, for weights that many calls read. `packed` has points * in_channels *
// out_channels floats, out_channels rounded up to 16. Points are 16, or 36 of F(4x4, 3x3): 0.56
// times the products, and four times the rounding error, a third to twice that of plain sums. With
// `adds`, y is added before the activation. Weights are float32, and so are images with 16 points.
ABELE_API int abele_winograd_pack(const AbeleConv* conv, const float* weight, float* packed,
                                  int points, int threads);

ABELE_API int abele_winograd_packed_forward(const AbeleConv* conv, const void* x,
                                            const float* packed, const float* bias, void* y,
                                            int adds, int points, int threads);

// The first two for kernels of 1x1, as products of matrices. There is code for channels-last images, no
// padding, results of two or more pixels, and a slope of 1.
ABELE_API int abele_pointwise_forward(const AbeleConv* conv, const float* x, const float* weight,
                                      const float* bias, float* y, int threads);

ABELE_API int abele_pointwise_backward(const AbeleConv* conv, const float* grad, const float* x,
                                       const float* weight, float* grad_x, float* grad_weight,
                                       float* grad_bias, int threads);

// -- depthwise convolution: a kernel for each channel ------------------------------------------------

// Images have their channels apart; weights are [channels, 1, size, size].
typedef struct AbeleDepthwise {
  int64_t images, channels, in_height, in_width;
  int64_t size, step;  // of kernels, and from window to window; there is code for 3, 5, 7 and 1, 2
  int64_t pad_height, pad_width;  // less than `size`
} AbeleDepthwise;

// y = x * weight + bias of each channel; `bias` may be null.
ABELE_API int abele_depthwise_forward(const AbeleDepthwise* depthwise, const float* x,
                                      const float* weight, const float* bias, float* y,
                                      int threads);

// Gradients of x, weight and bias; those that are null are not computed. Any number of threads gives
// the same bits. A number at a border that is not finite reaches all gradients of its channel's weight.
ABELE_API int abele_depthwise_backward(const AbeleDepthwise* depthwise, const float* grad,
                                       const float* x, const float* weight, float* grad_x,
                                       float* grad_weight, float* grad_bias, int threads);

// The largest values of windows of 2x2 that do not overlap, of what forward would give; a last row
// or column that fills no window belongs to none. There is code for images with their channels
// apart, and slopes of 0 and 1.
//
// `places` says backward where they came from, or is null: a byte for each number of y, if it had a
// multiple of 16 images, in an order of its own. NaN and equal values as in abele_max_pool.
ABELE_API int abele_conv_pool(const AbeleConv* conv, const float* x, const float* weight,
                              const float* bias, float* y, uint8_t* places, int threads);

// Gradients of x, weight and bias from that of y; those that are null are not computed.
ABELE_API int abele_conv_pool_backward(const AbeleConv* conv, const float* grad,
                                       const uint8_t* places, const float* x, const float* weight,
                                       float* grad_x, float* grad_weight, float* grad_bias,
                                       int threads);

// -- convolutions whose windows lie side by side, of channels-last images ------------------------

// Kernel and stride are equal and there is no padding: each pixel of the small images belongs to a
// window of the large ones, which are kernel_height x kernel_width times as large. Weights are
// [small_channels, large_channels, kernel_height, kernel_width]. There is code where small_channels
// and kernel_width * large_channels are multiples of 16.
typedef struct AbelePatches {
  int64_t images, height, width;  // of the small images
  int64_t small_channels, large_channels, kernel_height, kernel_width;
} AbelePatches;

// Forward of a transposed convolution, and the gradient of the input of a plain one; `bias` may be
// null.
ABELE_API int abele_patches_spread(const AbelePatches* patches, const float* small,
                                   const float* weight, const float* bias, float* large,
                                   int threads);

// Forward of a plain convolution, and the gradient of the input of a transposed one.
ABELE_API int abele_patches_gather(const AbelePatches* patches, const float* large,
                                   const float* weight, const float* bias, float* small,
                                   int threads);

// The gradient of the weight of both.
ABELE_API int abele_patches_weight(const AbelePatches* patches, const float* small,
                                   const float* large, float* grad_weight, int threads);

// Sums of each channel of [rows, width, channels].
ABELE_API int abele_channel_sums(int64_t rows, int64_t width, int64_t channels, const float* x,
                                 float* sums, int threads);

// -- convolutions of inference ---------------------------------------------------------------------

// Square windows with a bias; results are kept between two bounds, and a NaN stays one.
typedef struct AbeleClamped {
  int64_t images, in_channels, in_height, in_width;
  int64_t out_channels, size, step, padding;
  double low, high;
} AbeleClamped;

// A kernel for each channel of channels-last images; weights are [size * size][channels]. There is code
// for 16 channels or more (4 or 8 with shorter registers), sizes of 3, 5, 7, and padding below the size.
ABELE_API int abele_clamped_depthwise(const AbeleClamped* clamped, const float* x,
                                      const float* weight, const float* bias, float* y,
                                      int threads);

// From images with their channels apart to channels-last ones. `packed` is what abele_product_pack makes
// of the weight, [in_channels * size * size][out_channels], which has 192 rows at most.
ABELE_API int abele_clamped_few_channels(const AbeleClamped* clamped, const float* x,
                                         const float* packed, const float* bias, float* y,
                                         int threads);

// -- max pooling, windows of 2x2 that do not overlap -------------------------------------------

// Of the larger images. A last row or column that fills no window belongs to none.
typedef struct AbelePool {
  int64_t images, channels, height, width;
  int64_t channels_last;  // 0 or 1
} AbelePool;

// Largest value of each window and, unless `places` is null, its place there: 0 to 3 in scan order.
// NaN counts as largest; the first of equal values is taken, and the last NaN, as torch does.
ABELE_API int abele_max_pool(const AbelePool* pool, const float* x, float* y, uint8_t* places,
                             int threads);

// Each gradient goes to the place its value came from; the others get zero.
ABELE_API int abele_max_pool_backward(const AbelePool* pool, const float* grad_y,
                                      const uint8_t* places, float* grad_x, int threads);

// -- bilinear doubling of channels-last images -------------------------------------------------

// Of the smaller images. Corners are not aligned: a line of pixels a, b, c becomes a, (3a + b) / 4,
// (a + 3b) / 4, (3b + c) / 4, (b + 3c) / 4, c.
typedef struct AbeleUpsample {
  int64_t images, channels, height, width;
} AbeleUpsample;

// Any number of threads gives the same bits.
ABELE_API int abele_upsample(const AbeleUpsample* upsample, const float* x, float* y, int threads);
ABELE_API int abele_upsample_backward(const AbeleUpsample* upsample, const float* grad_y,
                                      float* grad_x, int threads);

// -- batch normalisation of channels-last images with its activation ---------------------------

typedef struct AbeleNorm {
  int64_t rows, channels;       // rows: images times pixels
  double momentum, eps, slope;  // slope: of the activation below zero; 1 for none
  int64_t in_16_bits;           // whether y will be rounded to 16 bits before backward reads it
  int64_t type;                 // of images: ABELE_FLOAT32 or ABELE_BFLOAT16; the rest is float32
} AbeleNorm;

// `statistics` is [3][channels]: mean, 1 / standard deviation, and whether y alone is enough for
// backward, which `*from_y` says too: 0 or 1.
ABELE_API int abele_norm_statistics(const AbeleNorm* norm, const void* x, const float* weight,
                                    const float* bias, const float* mean, const float* var,
                                    float* statistics, float* new_mean, float* new_var,
                                    int32_t* from_y, int threads);

// y = activation(normalised x * weight + bias + added); `added` may be null, y may be x or `added`.
ABELE_API int abele_norm_apply(const AbeleNorm* norm, const void* x, const float* weight,
                               const float* bias, const float* statistics, const void* added,
                               void* y, int threads);

// Gradients from that of y. `kept` is y where `statistics` say so, else x. `grad_x` may be `grad`.
ABELE_API int abele_norm_backward(const AbeleNorm* norm, const void* grad, const void* kept,
                                  const float* weight, const float* bias, const float* statistics,
                                  void* grad_x, float* grad_weight, float* grad_bias,
                                  int threads);

// The same where something was added: `masked` is the gradient of that. That of y is grad + more;
// `more` may be null, `masked` may be `grad` or `more`. The slope is not negative.
ABELE_API int abele_norm_sum_backward(const AbeleNorm* norm, const void* grad, const void* more,
                                      const void* y, const void* x, const float* weight,
                                      const float* statistics, void* masked, void* grad_x,
                                      float* grad_weight, float* grad_bias, int threads);

// y = activation(x * scale + shift), with `scale` and `shift` for each channel; y may be x.
ABELE_API int abele_scale_shift(const AbeleNorm* norm, const void* x, const float* scale,
                                const float* shift, void* y, int threads);

// -- products of matrices -------------------------------------------------------------------------

// c[i] = a[i] b[i] for i < count: [rows, inner] times [inner, columns]. Of the two steps of a, and of
// b, one is 1; `next` leads from one matrix to the next. Elements of a row of c are neighbours. If c_next
// is 0, c is the sum of all products. Factors of 16 bits are multiplied and summed in float32, and a c
// of 16 bits is rounded to nearest once.
enum { ABELE_FLOAT32 = 0, ABELE_FLOAT16 = 1, ABELE_BFLOAT16 = 2 };

typedef struct AbeleProduct {
  int64_t count, rows, columns, inner;
  int64_t a_next, a_row, a_column;
  int64_t b_next, b_row, b_column;
  int64_t c_next, c_row;
  int64_t b_packed;  // 0 or 1: b is what abele_product_pack wrote; its steps mean nothing
  int64_t added;     // 0 or 1: to what c holds
  // 0 or 1: two threads share the inner dimension, which is at least 2. For one product with b_column
  // 1 and b_packed 0.
  int64_t halves;
  // ABELE_FLOAT32 and so on; a packed b is float32. A c of 16 bits is not added to, is no sum of several
  // products, and `halves` is 0.
  int64_t a_type, b_type, c_type;
} AbeleProduct;

// Any number of threads gives the same bits.
ABELE_API int abele_product(const AbeleProduct* product, const void* a, const void* b, void* c,
                            int threads);

// What happens to rows of a product once they are computed: `count` of them, the first of which is
// row `first` of c, lie at `rows`. Several threads call it at once, for other rows.
typedef void (*AbeleRows)(void* context, const float* rows, int64_t first, int64_t count);

// The same product, of which c has no memory: `then` gets blocks of its rows while they are in the
// cache, each row once; they are `c_row` apart. For one product whose `added` is 0, and c is float32.
ABELE_API int abele_product_by_rows(const AbeleProduct* product, const void* a, const void* b,
                                    AbeleRows then, void* context, int threads);

// c = a b + bias + added, kept between two bounds; a NaN stays one. For one product whose b is packed and
// whose own `added` is 0, in float32. `added` lies as c does, and may be c, or null.
ABELE_API int abele_product_clamped(const AbeleProduct* product, const float* a,
                                    const float* packed, const float* bias, const float* added,
                                    double low, double high, float* c, int threads);

// Packs one b that many products read. `packed` has room for [inner][columns] with the columns
// rounded up to a multiple of 64.
ABELE_API int abele_product_pack(const AbeleProduct* product, const void* b, float* packed,
                                 int threads);

// y = a b + bias, rounded once, of bfloat16 numbers. Of a, a_column is 1, and a_row even, as inner is.
// `packed` is made of a b with b_column 1, or with b_row 1 and an even b_column; it has room for
// [inner / 2][columns] floats, the columns rounded up to a multiple of 64.
ABELE_API int abele_product_bfloat16(const AbeleProduct* product, const void* a,
                                     const float* packed, const float* bias, void* y, int threads);
ABELE_API int abele_product_bfloat16_pack(const AbeleProduct* product, const void* b,
                                          float* packed, int threads);

// -- recurrent layers -------------------------------------------------------------------------------

enum { ABELE_LSTM = 0, ABELE_GRU = 1, ABELE_RNN_TANH = 2, ABELE_RNN_RELU = 3 };

// One layer in one direction.
typedef struct AbeleRecurrent {
  int64_t kind;  // ABELE_LSTM and so on
  int64_t steps, batch, units;
  int64_t reverse;  // 0 or 1: from the last step to the first
  int64_t kept;     // 0 or 1: what backward needs of all steps
} AbeleRecurrent;

// All time steps. `inputs` is [steps][batch][gates * units], the GEMM of the layer's inputs and
// weights, with one bias; the other one, [gates * units], may be null. Gates are in torch's order.
// `packed` is what abele_product_pack makes of the transposed weight, [units][gates * units]; of the
// weight itself, for backward. h and c are [batch][units].
//
// LSTM; gates are [input, forget, cell, output]:
//
//     gates = inputs[t] + h weight' + bias
//     c = sigmoid(forget) c + sigmoid(input) tanh(cell);  h = sigmoid(output) tanh(c)
//
// GRU; gates are [reset, update, candidate]:
//
//     products = h weight' + bias
//     reset, update = sigmoid(inputs[t] + products)
//     candidate = tanh(inputs[t] + reset products);  h = (h - candidate) update + candidate
//
// RNN: h = tanh or relu(inputs[t] + h weight' + bias).
//
// `states` is [steps + 1][batch][units]: h before and after each step; with `reverse` the last of
// them is the first in time. `cells` has of c what `states` has of h; only an LSTM has it and c.
// `gates` is [steps][batch][4 * units]: those of an LSTM as the formula uses them; of a GRU reset,
// update, the candidate's product, and candidate; null for an RNN. If they are not kept, `cells` is
// c after all steps, and `gates` one step of any values.
//
// Backward computes the gradients of `inputs` and of the state before all steps from those of the
// states after each step, [steps][batch][units], and of the state after the last one; each of these
// may be null, for zeros. It reads `cells` and `gates` of an LSTM, `states` and `gates` of a GRU, and
// `states` of an RNN; the others may be null. `grad_products` are gradients of a GRU's products, of
// which its weight and bias have theirs; `grad_c` is for an LSTM; both are null otherwise.
// Any number of threads gives the same bits.
ABELE_API int abele_recurrent(const AbeleRecurrent* layer, const float* inputs,
                              const float* packed, const float* bias, const float* h,
                              const float* c, float* states, float* cells, float* gates,
                              int threads);
ABELE_API int abele_recurrent_backward(const AbeleRecurrent* layer, const float* grad_states,
                                       const float* grad_last_h, const float* grad_last_c,
                                       const float* packed, const float* states,
                                       const float* cells, const float* gates,
                                       float* grad_inputs, float* grad_products, float* grad_h,
                                       float* grad_c, int threads);

// -- attention, without mask and dropout ------------------------------------------------------------

typedef struct AbeleAttention {
  int64_t samples, heads, queries, keys, depth, value_depth;
  int64_t causal;  // 0 or 1: a query sees the keys up to its own position
  double scale;    // of scores; positive
  // ABELE_FLOAT32 or ABELE_BFLOAT16, of all tensors but the logarithms, which are float32. For the latter
  // all depths and steps are even.
  int64_t type;
} AbeleAttention;

// Of a tensor [samples, heads, positions, depth]; elements along the depth are neighbours.
typedef struct AbeleSteps {
  int64_t sample, head, position;
} AbeleSteps;

// y = softmax(scale q k^T) v, and the logarithm of the sum of exp(scale q k^T) of each query:
// [samples, heads, queries]. `steps` are those of q, k, v and y. Any number of threads gives the same
// bits, here and in backward.
ABELE_API int abele_attention(const AbeleAttention* attention, const AbeleSteps* steps,
                              const void* q, const void* k, const void* v, void* y,
                              float* logarithms, int threads);

// Gradients of q, k and v from `grad`, that of y. `steps` are those of grad, q, k, v, y, grad_q, grad_k
// and grad_v.
ABELE_API int abele_attention_backward(const AbeleAttention* attention, const AbeleSteps* steps,
                                       const void* grad, const void* q, const void* k,
                                       const void* v, const void* y, const float* logarithms,
                                       void* grad_q, void* grad_k, void* grad_v, int threads);

// -- rows and columns: norms, softmax, losses, sums -------------------------------------------------

// Any number of threads gives the same bits, and up to `threads` of them work.

// y = (x - mean) / standard deviation of each row, where `weighted` times weight plus bias.
ABELE_API int abele_layer_norm(int weighted, int64_t rows, int64_t size, double eps,
                               const float* x, const float* weight, const float* bias, float* y,
                               float* mean, float* rstd, int threads);
ABELE_API int abele_layer_norm_backward(int weighted, int64_t rows, int64_t size,
                                        const float* grad, const float* x, const float* mean,
                                        const float* rstd, const float* weight, float* grad_x,
                                        int threads);
ABELE_API int abele_layer_norm_weights(int64_t rows, int64_t size, const float* grad,
                                       const float* x, const float* mean, const float* rstd,
                                       float* grad_weight, float* grad_bias, int threads);

// Norms over groups of channels of samples x channels x pixels, with weight and bias. Backward also
// gives `sums` of each plane: of grad, and of grad times the normalised x. With `masked`, x went through
// a ReLU, and the gradient does as well.
ABELE_API int abele_group_norm(int64_t samples, int64_t channels, int64_t pixels, int64_t groups,
                               double eps, const float* x, const float* weight, const float* bias,
                               float* y, float* mean, float* rstd, int threads);
ABELE_API int abele_group_norm_backward(int masked, int64_t samples, int64_t channels,
                                        int64_t pixels, int64_t groups, const float* grad,
                                        const float* x, const float* mean, const float* rstd,
                                        const float* weight, float* grad_x, float* sums,
                                        int threads);

// Batch norm, of the channels from `begin` to `end`, in the calling thread: statistics of samples x
// channels x pixels, and what the running ones are afterwards, of which all four pointers may be null.
// Gradients are those of weight and bias. Samples of grad are `stride` elements apart; where pixels is
// 1, channels x pixels.
ABELE_API int abele_channel_statistics(int64_t begin, int64_t end, int64_t samples,
                                       int64_t channels, int64_t pixels, double eps,
                                       double momentum, const float* x, const float* running_mean,
                                       const float* running_var, float* mean, float* rstd,
                                       float* next_mean, float* next_var);
ABELE_API int abele_channel_gradients(int64_t begin, int64_t end, int64_t samples,
                                      int64_t channels, int64_t pixels, int64_t stride,
                                      const float* grad, const float* x, const float* mean,
                                      const float* rstd, float* grad_weight, float* grad_bias);

// Softmax over the middle of outer x size x inner; of kind 1, and with `log`, its logarithm; of kind 2
// zero where all numbers are minus infinity. Backward takes the result.
ABELE_API int abele_softmax(int kind, int64_t outer, int64_t size, int64_t inner, const float* x,
                            float* y, int threads);
ABELE_API int abele_softmax_backward(int log, int64_t outer, int64_t size, int64_t inner,
                                     const float* grad, const float* y, float* grad_x,
                                     int threads);

// Gradient of the negative log-likelihood, classes in the middle of outer x size x inner. `kind` is 0
// for a loss of each label, 1 for their mean, 2 for their sum; `weights` of classes may be null, and
// `weight` is that of all labels together.
ABELE_API int abele_nll_loss_backward(int kind, int64_t outer, int64_t size, int64_t inner,
                                      int64_t ignored, const float* grad, const int64_t* target,
                                      const float* weights, const float* weight, float* grad_x,
                                      int threads);

// Size and strides of one dimension, in the source and in the result.
typedef struct AbeleDim {
  int64_t size, stride, result;
} AbeleDim;

// to[k] = scale * sum over far and near of from[k, far, near], for k in outer x inner; with `norm`
// the root of the sum of squares. Of columns, neighbours in `inner` are neighbours in memory. With
// `split` threads share each sum.
ABELE_API int abele_sum_columns(int split, int norm, AbeleDim outer, AbeleDim inner, AbeleDim far,
                                AbeleDim near, double scale, const float* from, float* to,
                                int threads);
ABELE_API int abele_sum_rows(int split, int norm, AbeleDim outer, AbeleDim inner, AbeleDim far,
                             AbeleDim near, double scale, const float* from, float* to,
                             int threads);

// Each row of `grad` is added to the row of the table that it was read from; the others get zero.
ABELE_API int abele_embedding_backward(int64_t count, int64_t width, int64_t size,
                                       int64_t padding, const float* grad, const int64_t* rows,
                                       float* grad_table, int threads);

// -- Adam, over many parameters at once --------------------------------------------------------

typedef struct AbeleAdam {
  double beta1, beta2, eps, decay, scale;  // decay: decoupled from the gradient; scale divides it
  int64_t param_type, grad_type;  // 0: float32, 1: float16, 2: bfloat16; gradients 0 or the same
} AbeleAdam;

// One parameter, updated in place. `step` counts updates.
typedef struct AbeleAdamTensor {
  int64_t size;
  void* param;
  float* first;
  float* second;
  const void* grad;
  double* step;
} AbeleAdamTensor;

ABELE_API int abele_adam(const AbeleAdam* adam, const AbeleAdamTensor* tensors, int64_t count,
                         double rate, int threads);

// -- SGD with momentum, over many parameters at once -------------------------------------------

typedef struct AbeleSgd {
  // rest: what dampening leaves of a gradient; decay is added to it; nesterov: 1 or 0.
  double rate, momentum, rest, decay, nesterov;
} AbeleSgd;

// One parameter, updated in place.
typedef struct AbeleSgdTensor {
  int64_t size;
  float* param;
  float* velocity;
  const float* grad;
} AbeleSgdTensor;

ABELE_API int abele_sgd(const AbeleSgd* sgd, const AbeleSgdTensor* tensors, int64_t count,
                        int threads);

#ifdef __cplusplus
}
#endif

#endif  // ABELE_ABI_H
