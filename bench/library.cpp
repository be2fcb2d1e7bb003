#include "library.h"

#include <cblas.h>

#include <chrono>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ebb/storage.h"

namespace ebb::bench {
namespace {

// Floats of some value, aligned like ebb's own.
std::shared_ptr<Storage> floats(std::int64_t count) {
  auto storage = Storage::allocate(device::cpu, Bytes{count * 4});
  float* values = reinterpret_cast<float*>(storage->data());
  for (std::int64_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(i * 7919 % 1009) * 1e-3f - 0.5f;
  return storage;
}

float* data(const std::shared_ptr<Storage>& storage) {
  return reinterpret_cast<float*>(storage->data());
}

using dnnl::memory;
using Tag = memory::format_tag;

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// One convolution with images in format `images`.
class Convolution {
 public:
  Convolution(ConvPass pass, const ConvProblem& p, Tag images) : pass_(pass), stream_(engine()) {
    const auto f32 = memory::data_type::f32;
    const auto algorithm = dnnl::algorithm::convolution_direct;
    const memory::dims x_dims{p.batch, p.in, p.size, p.size},
        y_dims{p.batch, p.out, p.size, p.size}, w_dims{p.out, p.in, p.kernel, p.kernel}, ones{1, 1},
        pad{p.kernel / 2, p.kernel / 2};
    const memory::desc x(x_dims, f32, images), y(y_dims, f32, images), w(w_dims, f32, Tag::any);
    const dnnl::convolution_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, algorithm, x, w, y, ones, pad, pad}, engine());
    memory::desc x_wanted = forward.src_desc(), w_wanted = forward.weights_desc(),
                 y_wanted = forward.dst_desc();
    if (pass == ConvPass::forward) {
      primitive_ = dnnl::convolution_forward(forward);
    } else if (pass == ConvPass::input_grad) {
      const dnnl::convolution_backward_data::primitive_desc desc(
          {algorithm, x, w, y, ones, pad, pad}, engine(), forward);
      primitive_ = dnnl::convolution_backward_data(desc);
      x_wanted = desc.diff_src_desc(), w_wanted = desc.weights_desc(),
      y_wanted = desc.diff_dst_desc();
    } else {
      const dnnl::convolution_backward_weights::primitive_desc desc(
          {algorithm, x, w, y, ones, pad, pad}, engine(), forward);
      primitive_ = dnnl::convolution_backward_weights(desc);
      x_wanted = desc.src_desc(), w_wanted = desc.diff_weights_desc(),
      y_wanted = desc.diff_dst_desc();
    }
    x_.emplace(x_dims, Tag::nchw, x_wanted);
    w_.emplace(w_dims, Tag::oihw, w_wanted);
    y_.emplace(y_dims, Tag::nchw, y_wanted);
    switch (pass) {
      case ConvPass::forward:
        arguments_ = {
            {DNNL_ARG_SRC, x_->inner}, {DNNL_ARG_WEIGHTS, w_->inner}, {DNNL_ARG_DST, y_->inner}};
        break;
      case ConvPass::input_grad:
        arguments_ = {{DNNL_ARG_DIFF_SRC, x_->inner},
                      {DNNL_ARG_WEIGHTS, w_->inner},
                      {DNNL_ARG_DIFF_DST, y_->inner}};
        break;
      case ConvPass::weight_grad:
        arguments_ = {{DNNL_ARG_SRC, x_->inner},
                      {DNNL_ARG_DIFF_WEIGHTS, w_->inner},
                      {DNNL_ARG_DIFF_DST, y_->inner}};
        break;
    }
  }

  void run() {
    if (pass_ != ConvPass::input_grad) x_->load(stream_);
    if (pass_ != ConvPass::weight_grad) w_->load(stream_);
    if (pass_ != ConvPass::forward) y_->load(stream_);
    primitive_.execute(stream_, arguments_);
    if (pass_ == ConvPass::input_grad) x_->store(stream_);
    if (pass_ == ConvPass::weight_grad) w_->store(stream_);
    if (pass_ == ConvPass::forward) y_->store(stream_);
    stream_.wait();
  }

 private:
  // A tensor in the caller's format and in the primitive's.
  struct Operand {
    memory plain, inner;
    std::shared_ptr<Storage> plain_bytes, inner_bytes;
    std::optional<dnnl::reorder> in, out;

    Operand(const memory::dims& dims, Tag tag, const memory::desc& wanted) {
      const memory::desc held(dims, memory::data_type::f32, tag);
      plain_bytes = floats(static_cast<std::int64_t>(held.get_size()) / 4);
      plain = memory(held, engine(), plain_bytes->data());
      inner = plain;
      if (held == wanted) return;
      inner_bytes = floats(static_cast<std::int64_t>(wanted.get_size()) / 4);
      inner = memory(wanted, engine(), inner_bytes->data());
      in.emplace(plain, inner), out.emplace(inner, plain);
    }
    void load(dnnl::stream& stream) {
      if (in) in->execute(stream, plain, inner);
    }
    void store(dnnl::stream& stream) {
      if (out) out->execute(stream, inner, plain);
    }
  };

  ConvPass pass_;
  dnnl::stream stream_;
  dnnl::primitive primitive_;
  std::optional<Operand> x_, w_, y_;
  std::unordered_map<int, memory> arguments_;
};

double best_of_five(Convolution& convolution) {
  double best = 1e30;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    convolution.run();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    best = std::min(best, taken.count());
  }
  return best;
}

}  // namespace

Work library_product(std::int64_t batch, std::int64_t rows, std::int64_t inner,
                     std::int64_t columns) {
  const auto a = floats(batch * rows * inner), b = floats(batch * inner * columns),
             out = floats(batch * rows * columns);
  return [=] {
    const int m = static_cast<int>(rows), n = static_cast<int>(columns),
              k = static_cast<int>(inner);
    for (std::int64_t i = 0; i < batch; ++i)
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1.0f,
                  data(a) + i * rows * inner, k, data(b) + i * inner * columns, n, 0.0f,
                  data(out) + i * rows * columns, n);
  };
}

Work library_convolution(ConvPass pass, const ConvProblem& problem) {
  auto own = std::make_shared<Convolution>(pass, problem, Tag::any);
  auto plain = std::make_shared<Convolution>(pass, problem, Tag::nchw);
  auto best = best_of_five(*own) <= best_of_five(*plain) ? own : plain;
  return [best] { best->run(); };
}

}  // namespace ebb::bench
