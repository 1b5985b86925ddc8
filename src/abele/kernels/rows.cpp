// Norms, softmax, losses, sums and tables that threads share. Programs call these instead of compiling
// the same templates again, which took a compiler more time than all of their own code.
#include "abi.h"
#include "losses.h"
#include "norms.h"
#include "sums.h"
#include "tables.h"

namespace {

constexpr int ANY = 1 << 30;  // the caller has limited the threads

}  // namespace

int abele_layer_norm(int weighted, int64_t rows, int64_t size, double eps, const float* x,
                     const float* weight, const float* bias, float* y, float* mean, float* rstd,
                     int threads) {
  const auto norm = weighted ? abele::layer_norm<ANY, true, float, float>
                             : abele::layer_norm<ANY, false, float, float>;
  norm(rows, size, float(eps), x, weight, bias, y, mean, rstd, threads);
  return ABELE_OK;
}

int abele_layer_norm_backward(int weighted, int64_t rows, int64_t size, const float* grad,
                              const float* x, const float* mean, const float* rstd,
                              const float* weight, float* grad_x, int threads) {
  const auto backward = weighted ? abele::layer_norm_backward<ANY, true, float, float, float>
                                 : abele::layer_norm_backward<ANY, false, float, float, float>;
  backward(rows, size, grad, x, mean, rstd, weight, grad_x, threads);
  return ABELE_OK;
}

int abele_layer_norm_weights(int64_t rows, int64_t size, const float* grad, const float* x,
                             const float* mean, const float* rstd, float* grad_weight,
                             float* grad_bias, int threads) {
  abele::layer_norm_weights<ANY>(rows, size, grad, x, mean, rstd, grad_weight, grad_bias, threads);
  return ABELE_OK;
}

int abele_group_norm(int64_t samples, int64_t channels, int64_t pixels, int64_t groups,
                     double eps, const float* x, const float* weight, const float* bias, float* y,
                     float* mean, float* rstd, int threads) {
  abele::group_norm<ANY, float, float>(samples, channels, pixels, groups, float(eps), x, weight, bias, y, mean,
                         rstd, threads);
  return ABELE_OK;
}

int abele_group_norm_backward(int masked, int64_t samples, int64_t channels, int64_t pixels,
                              int64_t groups, const float* grad, const float* x,
                              const float* mean, const float* rstd, const float* weight,
                              float* grad_x, float* sums, int threads) {
  const auto backward =
      masked ? abele::group_norm_backward<ANY, true, float, float, float>
             : abele::group_norm_backward<ANY, false, float, float, float>;
  backward(samples, channels, pixels, groups, grad, x, mean, rstd, weight, grad_x, sums, threads);
  return ABELE_OK;
}

int abele_channel_statistics(int64_t begin, int64_t end, int64_t samples, int64_t channels,
                             int64_t pixels, double eps, double momentum, const float* x,
                             const float* running_mean, const float* running_var, float* mean,
                             float* rstd, float* next_mean, float* next_var) {
  abele::channel_statistics(begin, end, samples, channels, pixels, float(eps), float(momentum), x,
                            running_mean, running_var, mean, rstd, next_mean, next_var);
  return ABELE_OK;
}

int abele_channel_gradients(int64_t begin, int64_t end, int64_t samples, int64_t channels,
                            int64_t pixels, int64_t stride, const float* grad, const float* x,
                            const float* mean, const float* rstd, float* grad_weight,
                            float* grad_bias) {
  abele::channel_gradients(begin, end, samples, channels, pixels, stride, grad, x, mean, rstd,
                           grad_weight, grad_bias);
  return ABELE_OK;
}

int abele_softmax(int kind, int64_t outer, int64_t size, int64_t inner, const float* x, float* y,
                  int threads) {
  const auto softmax = kind == abele::PLAIN ? abele::softmax<ANY, abele::PLAIN>
                       : kind == abele::LOG ? abele::softmax<ANY, abele::LOG>
                                            : abele::softmax<ANY, abele::SAFE>;
  softmax(outer, size, inner, x, y, threads);
  return ABELE_OK;
}

int abele_softmax_backward(int log, int64_t outer, int64_t size, int64_t inner,
                           const float* grad, const float* y, float* grad_x, int threads) {
  const auto backward =
      log ? abele::softmax_backward<ANY, true> : abele::softmax_backward<ANY, false>;
  backward(outer, size, inner, grad, y, grad_x, threads);
  return ABELE_OK;
}

int abele_nll_loss_backward(int kind, int64_t outer, int64_t size, int64_t inner,
                            int64_t ignored, const float* grad, const int64_t* target,
                            const float* weights, const float* weight, float* grad_x,
                            int threads) {
  const auto backward = kind == 0   ? abele::nll_loss_backward<ANY, 0>
                        : kind == 1 ? abele::nll_loss_backward<ANY, 1>
                                    : abele::nll_loss_backward<ANY, 2>;
  backward(outer, size, inner, ignored, grad, target, weights, weight, grad_x, threads);
  return ABELE_OK;
}

int abele_sum_columns(int split, int norm, AbeleDim outer, AbeleDim inner, AbeleDim far,
                      AbeleDim near, double scale, const float* from, float* to, int threads) {
  const auto sum = split ? norm ? abele::sum_columns<ANY, true, true, float, float>
                                : abele::sum_columns<ANY, true, false, float, float>
                   : norm ? abele::sum_columns<ANY, false, true, float, float>
                          : abele::sum_columns<ANY, false, false, float, float>;
  sum(outer, inner, far, near, scale, from, to, threads);
  return ABELE_OK;
}

int abele_sum_rows(int split, int norm, AbeleDim outer, AbeleDim inner, AbeleDim far,
                   AbeleDim near, double scale, const float* from, float* to, int threads) {
  const auto sum = split ? norm ? abele::sum_rows<ANY, true, true, float, float>
                                : abele::sum_rows<ANY, true, false, float, float>
                   : norm ? abele::sum_rows<ANY, false, true, float, float>
                          : abele::sum_rows<ANY, false, false, float, float>;
  sum(outer, inner, far, near, scale, from, to, threads);
  return ABELE_OK;
}

int abele_embedding_backward(int64_t count, int64_t width, int64_t size, int64_t padding,
                             const float* grad, const int64_t* rows, float* grad_table,
                             int threads) {
  abele::embedding_backward<ANY>(count, width, size, padding, grad, rows, grad_table, threads);
  return ABELE_OK;
}
