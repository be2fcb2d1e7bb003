// Convolution on oneDNN.
//
// NCHW images are reordered before and after, because oneDNN's fast kernels need the channels
// innermost. This is done a few images at a time: the copies then stay in the second-level caches,
// which is faster than reordering the batch at once and takes a fraction of the workspace. Products
// over 1 x 1 kernels, and gradients in images of a few channels, run directly on NCHW, because
// there the reorder costs more than it saves. NHWC images are used without a reorder if oneDNN has
// a kernel for that.
//
// Primitives are made when the kernel is bound. oneDNN takes its scratchpads from our workspace.
#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "ops/conv2d/conv2d.h"
#include "ops/onednn.h"

namespace ebb {
namespace {

using namespace onednn;
using dnnl::memory;
using Tag = memory::format_tag;
using Desc = memory::desc;

constexpr std::int64_t few_channels = 4;      // of an image that is not worth padding to a vector
constexpr std::int64_t vector_channels = 16;  // of oneDNN's blocks for 512-bit vectors
constexpr std::int64_t least_columns = 128;   // from which plain 1 x 1 products are efficient

// A reorder between two memory objects; does nothing if their layouts are equal.
struct Copy {
  dnnl::reorder primitive;
  memory scratch;
  bool needed = false;

  Copy() = default;
  Copy(const Desc& from, const Desc& to) : needed(from != to) {
    if (!needed) return;
    const dnnl::reorder::primitive_desc desc(engine(), from, engine(), to, user_scratchpad());
    primitive = dnnl::reorder(desc);
    scratch = place(desc.scratchpad_desc());
  }
  Bytes scratch_bytes() const { return needed ? bytes(scratch.get_desc()) : Bytes{}; }
  void run(const dnnl::stream& stream, const memory& from, const memory& to) const {
    if (needed)
      execute<3>("conv2d", primitive, stream,
                 {{{DNNL_ARG_FROM, from.get()},
                   {DNNL_ARG_TO, to.get()},
                   {DNNL_ARG_SCRATCHPAD, scratch.get()}}});
  }
};

// The formats requested from oneDNN for image and result.
struct Formats {
  Tag x = Tag::any, y = Tag::any;

  Formats() = default;
  Formats(ConvKind kind, const ConvGeometry& g, DType dtype) {
    if (g.channels_last()) {
      x = y = Tag::nhwc;
      return;
    }
    if (dtype != f32) return;
    const bool product = g.kernel == Size2d(1) && g.stride == Size2d(1) && g.padding == Size2d(0) &&
                         g.groups == 1 && g.result.h * g.result.w >= least_columns;
    const bool thin = g.in <= few_channels && g.groups == 1;
    if (product || (thin && kind == ConvKind::input_grad))
      x = y = Tag::nchw;
    else if (thin)
      x = Tag::nchw;
    else if (kind == ConvKind::forward && blocks(g))
      x = y = Tag::nChw16c;
  }
  // In forward, oneDNN prefers NHWC. Reordering to it takes longer than to blocked channels, which
  // only a single block makes up for, by its faster kernel.
  static bool blocks(const ConvGeometry& g) {
    if (!has_isa(dnnl::cpu_isa::avx512_core)) return false;
    if (g.groups == g.in && g.groups == g.out) return g.in % vector_channels == 0;  // depthwise
    const std::int64_t in = g.in / g.groups, out = g.out / g.groups;
    return in % vector_channels == 0 && out % vector_channels == 0 && in > vector_channels;
  }
  bool plain() const { return x == y && (x == Tag::nchw || x == Tag::nhwc); }
};

// The primitives for a run of `images` images.
struct Stage {
  std::int64_t images = 0;
  dnnl::primitive convolution;
  memory x_plain, y_plain;  // as ebb holds them
  memory x, y;              // in the primitive's layout; the same object if the layouts are equal
  Desc weight;              // as the primitive wants it; a gradient is always float32
  memory scratch;
  Copy copy_x, copy_y;

  Stage(ConvKind kind, const ConvGeometry& g, std::int64_t count, bool bias, DType dtype,
        const Formats& formats, const Desc* fixed_weight)
      : images(count) {
    const auto type = dtype == bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const auto gradient_type = kind == ConvKind::weight_grad ? memory::data_type::f32 : type;
    const memory::dims x_dims{count, g.in, g.image.h, g.image.w};
    const memory::dims y_dims{count, g.out, g.result.h, g.result.w};
    const memory::dims strides{g.stride.h, g.stride.w},
        dilation{g.dilation.h - 1, g.dilation.w - 1}, before{g.padding.h, g.padding.w};
    // Cells after the last position of the kernel count as (possibly negative) padding.
    const auto rest = [](std::int64_t image, std::int64_t kernel, std::int64_t result,
                         std::int64_t stride, std::int64_t step, std::int64_t pad) {
      return (result - 1) * stride + step * (kernel - 1) + 1 - image - pad;
    };
    const memory::dims after{
        rest(g.image.h, g.kernel.h, g.result.h, g.stride.h, g.dilation.h, g.padding.h),
        rest(g.image.w, g.kernel.w, g.result.w, g.stride.w, g.dilation.w, g.padding.w)};
    const Desc x_any(x_dims, type, formats.x), y_any(y_dims, type, formats.y);
    const Desc w_any = fixed_weight ? *fixed_weight : Desc(weight_dims(g), gradient_type, Tag::any);
    const Desc w_forward(weight_dims(g), type, Tag::any);
    const auto algorithm = dnnl::algorithm::convolution_direct;
    const dnnl::primitive_attr attributes = user_scratchpad();
    Desc x_desc, y_desc, scratch_desc;

    if (kind == ConvKind::forward) {
      const Desc b = bias ? Desc({g.out}, type, Tag::x) : Desc();
      const dnnl::convolution_forward::primitive_desc desc(
          bias ? dnnl::convolution_forward::desc(dnnl::prop_kind::forward_inference, algorithm,
                                                 x_any, w_any, b, y_any, strides, dilation, before,
                                                 after)
               : dnnl::convolution_forward::desc(dnnl::prop_kind::forward_inference, algorithm,
                                                 x_any, w_any, y_any, strides, dilation, before,
                                                 after),
          attributes, engine());
      refuse_loops(desc);
      convolution = dnnl::convolution_forward(desc);
      x_desc = desc.src_desc(), weight = desc.weights_desc(), y_desc = desc.dst_desc();
      scratch_desc = desc.scratchpad_desc();
    } else {
      // oneDNN requires the forward pass as a hint; nothing of it is used later.
      const Desc x_hint(x_dims, type, Tag::any), y_hint(y_dims, type, Tag::any);
      const dnnl::convolution_forward::primitive_desc hint(
          dnnl::convolution_forward::desc(dnnl::prop_kind::forward_training, algorithm, x_hint,
                                          w_forward, y_hint, strides, dilation, before, after),
          attributes, engine());
      if (kind == ConvKind::input_grad) {
        const dnnl::convolution_backward_data::primitive_desc desc(
            dnnl::convolution_backward_data::desc(algorithm, x_any, w_any, y_any, strides, dilation,
                                                  before, after),
            attributes, engine(), hint);
        refuse_loops(desc);
        convolution = dnnl::convolution_backward_data(desc);
        x_desc = desc.diff_src_desc(), weight = desc.weights_desc(), y_desc = desc.diff_dst_desc();
        scratch_desc = desc.scratchpad_desc();
      } else {
        const dnnl::convolution_backward_weights::primitive_desc desc(
            dnnl::convolution_backward_weights::desc(algorithm, x_any, w_any, y_any, strides,
                                                     dilation, before, after),
            attributes, engine(), hint);
        refuse_loops(desc);
        convolution = dnnl::convolution_backward_weights(desc);
        x_desc = desc.src_desc(), weight = desc.diff_weights_desc(), y_desc = desc.diff_dst_desc();
        scratch_desc = desc.scratchpad_desc();
      }
    }

    const Tag images_held = g.channels_last() ? Tag::nhwc : Tag::nchw;
    const Desc x_held(x_dims, type, images_held), y_held(y_dims, type, images_held);
    scratch = place(scratch_desc);
    x_plain = place(x_held), y_plain = place(y_held);
    copy_x = kind == ConvKind::input_grad ? Copy(x_desc, x_held) : Copy(x_held, x_desc);
    copy_y = kind == ConvKind::forward ? Copy(y_desc, y_held) : Copy(y_held, y_desc);
    x = copy_x.needed ? place(x_desc) : x_plain;
    y = copy_y.needed ? place(y_desc) : y_plain;
  }

  static memory::dims weight_dims(const ConvGeometry& g) {
    if (g.groups == 1) return {g.out, g.in, g.kernel.h, g.kernel.w};
    return {g.groups, g.out / g.groups, g.in / g.groups, g.kernel.h, g.kernel.w};
  }
  Bytes x_bytes() const { return copy_x.needed ? bytes(x.get_desc()) : Bytes{}; }
  Bytes y_bytes() const { return copy_y.needed ? bytes(y.get_desc()) : Bytes{}; }
  Bytes scratch_bytes() const {
    return std::max({bytes(scratch.get_desc()), copy_x.scratch_bytes(), copy_y.scratch_bytes()});
  }
};

class OnednnConvolution {
 public:
  OnednnConvolution(ConvKind kind, const ConvGeometry& g, bool bias, DType dtype)
      : kind_(kind),
        g_(g),
        element_(size_of(dtype)),
        threads_(library_threads()),
        stream_(engine()) {
    const Formats best(kind, g, dtype);
    const std::int64_t images = images_at_once(g, element_);
    // The requested formats may have no kernel, and a shorter last run may need another weight
    // format.
    const bool made = make_stages(best.plain() ? g.batch : images, bias, dtype, best) ||
                      make_stages(images, bias, dtype, Formats()) ||
                      make_stages(g.batch, bias, dtype, Formats());
    if (!made) throw dnnl::error(dnnl_unimplemented, "no kernel");

    const auto type = dtype == bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const Tag weight_held = g.channels_last() ? (g.groups == 1 ? Tag::ohwi : Tag::gohwi)
                                              : (g.groups == 1 ? Tag::oihw : Tag::goihw);
    const Desc held(Stage::weight_dims(g), type, weight_held);
    weight_plain_ = place(held);
    const Desc& wanted = stages_.front().weight;
    copy_weight_ = kind == ConvKind::weight_grad ? Copy(wanted, held) : Copy(held, wanted);
    weight_ = copy_weight_.needed ? place(wanted) : weight_plain_;
    if (adds_up()) part_ = place(wanted);
    if (bias) bias_ = place(Desc({g.out}, type, Tag::x));
    lay_out();
  }

  Bytes workspace() const { return workspace_; }

  void operator()(const KernelArgs& args) {
    const LibraryThreads as_made(threads_);
    std::byte *x_held = nullptr, *y_held = nullptr, *weight_held = nullptr;
    switch (kind_) {
      case ConvKind::forward:
        x_held = args.inputs[0], weight_held = args.inputs[1], y_held = args.outputs[0];
        if (bias_) bias_.set_data_handle(args.inputs[2]);
        break;
      case ConvKind::input_grad:
        weight_held = args.inputs[0], y_held = args.inputs[1], x_held = args.outputs[0];
        break;
      case ConvKind::weight_grad:
        x_held = args.inputs[0], y_held = args.inputs[1], weight_held = args.outputs[0];
        break;
    }
    std::byte* scratch = args.workspace + scratch_at_.count;
    weight_plain_.set_data_handle(weight_held);
    if (copy_weight_.needed) {
      weight_.set_data_handle(args.workspace + weight_at_.count);
      copy_weight_.scratch.set_data_handle(scratch);
    }
    if (part_) part_.set_data_handle(args.workspace + part_at_.count);
    for (Stage& stage : stages_) {
      stage.scratch.set_data_handle(scratch);
      if (stage.copy_x.needed) {
        stage.x.set_data_handle(args.workspace + x_at_.count);
        stage.copy_x.scratch.set_data_handle(scratch);
      }
      if (stage.copy_y.needed) {
        stage.y.set_data_handle(args.workspace + y_at_.count);
        stage.copy_y.scratch.set_data_handle(scratch);
      }
    }

    if (kind_ != ConvKind::weight_grad) copy_weight_.run(stream_, weight_plain_, weight_);
    for (std::int64_t n = 0; n < g_.batch;) {
      Stage& stage = n + stages_.front().images <= g_.batch ? stages_.front() : stages_.back();
      stage.x_plain.set_data_handle(x_held + n * (g_.image_elements() * element_).count);
      stage.y_plain.set_data_handle(y_held + n * (g_.result_elements() * element_).count);
      run_stage(stage, n == 0);
      n += stage.images;
    }
    if (kind_ == ConvKind::weight_grad) copy_weight_.run(stream_, weight_, weight_plain_);
  }

 private:
  bool make_stages(std::int64_t images, bool bias, DType dtype, const Formats& formats) {
    stages_.clear();
    try {
      stages_.emplace_back(kind_, g_, images, bias, dtype, formats, nullptr);
      const Desc weight = stages_.front().weight;
      if (const std::int64_t last = g_.batch % images; last != 0)
        stages_.emplace_back(kind_, g_, last, bias, dtype, formats, &weight);
      return true;
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented && error.status != dnnl_invalid_arguments) throw;
      return false;
    }
  }

  bool adds_up() const {
    return kind_ == ConvKind::weight_grad && stages_.front().images < g_.batch;
  }

  void lay_out() {
    Bytes x, y, scratch = copy_weight_.scratch_bytes(), at;
    for (const Stage& stage : stages_) {
      x = std::max(x, stage.x_bytes()), y = std::max(y, stage.y_bytes());
      scratch = std::max(scratch, stage.scratch_bytes());
    }
    const auto take = [&](Bytes size) { return at += size, at - size; };
    weight_at_ = take(copy_weight_.needed ? bytes(weight_.get_desc()) : Bytes{});
    part_at_ = take(part_ ? bytes(part_.get_desc()) : Bytes{});
    x_at_ = take(x);
    y_at_ = take(y);
    scratch_at_ = take(scratch);
    workspace_ = at;
  }

  void run_stage(const Stage& s, bool first) {
    if (kind_ != ConvKind::input_grad) s.copy_x.run(stream_, s.x_plain, s.x);
    if (kind_ != ConvKind::forward) s.copy_y.run(stream_, s.y_plain, s.y);
    switch (kind_) {
      case ConvKind::forward:
        if (bias_)
          execute<5>("conv2d", s.convolution, stream_,
                     {{{DNNL_ARG_SRC, s.x.get()},
                       {DNNL_ARG_WEIGHTS, weight_.get()},
                       {DNNL_ARG_BIAS, bias_.get()},
                       {DNNL_ARG_DST, s.y.get()},
                       {DNNL_ARG_SCRATCHPAD, s.scratch.get()}}});
        else
          execute<4>("conv2d", s.convolution, stream_,
                     {{{DNNL_ARG_SRC, s.x.get()},
                       {DNNL_ARG_WEIGHTS, weight_.get()},
                       {DNNL_ARG_DST, s.y.get()},
                       {DNNL_ARG_SCRATCHPAD, s.scratch.get()}}});
        s.copy_y.run(stream_, s.y, s.y_plain);
        break;
      case ConvKind::input_grad:
        execute<4>("conv2d", s.convolution, stream_,
                   {{{DNNL_ARG_DIFF_SRC, s.x.get()},
                     {DNNL_ARG_WEIGHTS, weight_.get()},
                     {DNNL_ARG_DIFF_DST, s.y.get()},
                     {DNNL_ARG_SCRATCHPAD, s.scratch.get()}}});
        s.copy_x.run(stream_, s.x, s.x_plain);
        break;
      case ConvKind::weight_grad:
        execute<4>("conv2d", s.convolution, stream_,
                   {{{DNNL_ARG_SRC, s.x.get()},
                     {DNNL_ARG_DIFF_WEIGHTS, first ? weight_.get() : part_.get()},
                     {DNNL_ARG_DIFF_DST, s.y.get()},
                     {DNNL_ARG_SCRATCHPAD, s.scratch.get()}}});
        if (!first) add_part();
        break;
    }
  }

  void add_part() {
    float* total = static_cast<float*>(weight_.get_data_handle());
    const float* part = static_cast<const float*>(part_.get_data_handle());
    const auto count = static_cast<std::int64_t>(part_.get_desc().get_size() / sizeof(float));
    parallel_for(count, 16384, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) total[i] += part[i];
    });
  }

  ConvKind kind_;
  ConvGeometry g_;
  Bytes element_;
  int threads_;
  dnnl::stream stream_;
  std::vector<Stage> stages_;  // for whole runs, and for the shorter last one if there is one
  memory weight_plain_, weight_, part_, bias_;
  Copy copy_weight_;
  Bytes weight_at_, part_at_, x_at_, y_at_, scratch_at_, workspace_;
};

}  // namespace

std::optional<Kernel> bind_conv_onednn(ConvKind kind, const ConvGeometry& geometry, bool bias,
                                       DType dtype) {
  if (dtype != f32 && !(dtype == bf16 && has_isa(dnnl::cpu_isa::avx512_core_bf16))) return {};
  try {
    const auto convolution = std::make_shared<OnednnConvolution>(kind, geometry, bias, dtype);
    return Kernel{[convolution](const KernelArgs& args) { (*convolution)(args); },
                  convolution->workspace()};
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) return {};
    throw Error(std::string("[conv2d] oneDNN failed while binding: ") + error.what());
  }
}

}  // namespace ebb
