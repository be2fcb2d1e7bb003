#include "ebb/nn/module.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <iterator>

#include "ebb/error.h"
#include "ebb/ops.h"
#include "ebb/pairs.h"
#include "ebb/storage.h"
#include "ops/pairs/pattern.h"

namespace ebb::nn {
namespace {

thread_local ForwardScope* current_forward = nullptr;
thread_local Place current_place;

// The value of a weight to be packed, as (outputs, inputs). For a variable without a value, this is
// its initial value, which need not be kept.
Tensor matrix_of(const Variable& plain, bool transposed) {
  const Tensor value = plain.has_value() ? Tensor(plain) : plain.node()->initial();
  return transposed ? permute(value, {1, 0}) : value;
}

}  // namespace

ForwardScope::ForwardScope(Mode mode) : mode_(mode), outer_(std::exchange(current_forward, this)) {}
ForwardScope::~ForwardScope() { current_forward = outer_; }
Mode ForwardScope::mode() { return current_forward ? current_forward->mode_ : Mode::evaluate; }

Tensor ForwardScope::current(const Variable& buffer) {
  if (current_forward)
    for (const Update& update : current_forward->updates_)
      if (update.target == buffer) return update.value;
  return buffer;
}

// One update for each buffer: a later value is computed from the earlier one (see `current`).
void ForwardScope::record(const Variable& buffer, const Tensor& value) {
  if (!current_forward) return;
  std::erase_if(current_forward->updates_,
                [&](const Update& update) { return update.target == buffer; });
  current_forward->updates_.push_back({buffer, value});
}

MakeScope::MakeScope(Device device, DType dtype)
    : outer_(std::exchange(current_place, Place{nullptr, {}, device, dtype})) {}
MakeScope::~MakeScope() { current_place = std::move(outer_); }

Place root_place(SourceLine source) {
  Place place = current_place;
  place.source = source;
  return place;
}

ModuleBase::ModuleBase(Place place)
    : parent_(place.parent),
      path_(std::move(place.path)),
      device_(place.device),
      dtype_(place.dtype),
      source_(place.source),
      block_(place.in_list) {
  if (parent_) parent_->children_.push_back(this);
}

std::string ModuleBase::path_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

Place ModuleBase::place_of(std::string_view name, SourceLine source) {
  const std::string path = path_of(name);
  if (std::any_of(children_.begin(), children_.end(),
                  [&](const ModuleBase* child) { return child->path_ == path; }))
    throw ValueError(fmt::format("module \"{}\" already has a child named \"{}\"", path_, name));
  return {this, path, device_, dtype_, false, source};
}

Variable ModuleBase::parameter(std::string_view name, const Shape& shape, const Initial& initial,
                               Role role) {
  const TraceScope scope(path_of(name));  // so that keys depend on the path alone
  const auto value = [&] {
    switch (initial.kind) {
      case Initial::Kind::uniform:
        return random_uniform(shape, initial.a, initial.b, dtype_, device_);
      case Initial::Kind::normal:
        return random_normal(shape, initial.a, initial.b, dtype_, device_);
      case Initial::Kind::constant:
        break;
    }
    return full(shape, initial.a, dtype_, device_);
  };
  parameters_.push_back({path_of(name), Variable(value(), Category::weights), role});
  return parameters_.back().variable;
}

Variable ModuleBase::buffer(std::string_view name, const TensorType& type, double value) {
  const TraceScope scope(path_of(name));
  buffers_.push_back(
      {path_of(name), Variable(full(type.shape, value, type.dtype, device_), Category::weights)});
  return buffers_.back().variable;
}

NamedVariable& ModuleBase::to_pack(std::string_view name) {
  const std::string path = path_of(name);
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const NamedVariable& p) { return p.path == path; });
  if (found == parameters_.end() || found->packed || found->pairs)
    throw ValueError(fmt::format("module \"{}\" has no parameter \"{}\" to pack", path_, name));
  return *found;
}

Variable ModuleBase::pack(std::string_view name, const PackedWeight& packed) {
  NamedVariable& found = to_pack(name);
  if (found.shape() != packed.shape())
    throw ShapeError(fmt::format("\"{}\" has shape {}, but is to be packed as {}", found.path,
                                 to_string(found.shape()), to_string(packed.shape())));
  const TraceScope scope(found.path);
  found.variable = Variable(quantise(matrix_of(found.variable, packed.transposed), packed.encoding),
                            Category::weights);
  found.packed = packed;
  return found.variable;
}

NamedVariable ModuleBase::pack(std::string_view name, const PairWeight& pairs) {
  NamedVariable& found = to_pack(name);
  const Variable plain = found.variable;
  if (const Shape& shape = plain.shape();
      shape.rank() != 2 || shape[pairs.transposed ? 0 : 1] % 4 != 0)
    throw ShapeError(fmt::format(
        "\"{}\" cannot have the pattern 2:4: its inputs must be a multiple of 4, but its shape is "
        "{}",
        found.path, to_string(shape)));
  if (plain.has_value()) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(plain.type().bytes().count));
    plain.node()->storage()->read(bytes);
    if (const auto fault = pattern_fault(bytes, plain.type(), pairs.transposed))
      throw ValueError(fmt::format("\"{}\": {}", found.path, *fault));
  }
  const TraceScope scope(found.path);
  const Tensor matrix = matrix_of(plain, pairs.transposed), positions = choose_pairs(matrix);
  found.variable = Variable(take_pairs(matrix, positions), Category::weights);
  found.pairs = pairs;
  found.pairs->positions = Variable(positions, Category::weights);
  buffers_.push_back({path_of("positions"), found.pairs->positions});
  return found;
}

Shape NamedVariable::shape() const {
  if (packed) return packed->shape();
  if (!pairs) return variable.shape();
  const std::int64_t rows = variable.shape()[0], columns = 2 * variable.shape()[1];
  return pairs->transposed ? Shape{columns, rows} : Shape{rows, columns};
}

bool ModuleBase::in_block() const {
  for (const ModuleBase* module = this; module; module = module->parent_)
    if (module->block_) return true;
  return false;
}

template <class Visit>
void ModuleBase::visit(const Visit& visit) const {
  visit(*this);
  for (const ModuleBase* child : children_) child->visit(visit);
}

std::vector<NamedVariable> ModuleBase::parameters() const {
  std::vector<NamedVariable> result;
  visit([&](const ModuleBase& m) {
    result.insert(result.end(), m.parameters_.begin(), m.parameters_.end());
  });
  return result;
}

std::vector<NamedVariable> ModuleBase::buffers() const {
  std::vector<NamedVariable> result;
  visit([&](const ModuleBase& m) {
    result.insert(result.end(), m.buffers_.begin(), m.buffers_.end());
  });
  return result;
}

bool ModuleBase::frozen() const {
  for (const ModuleBase* module = this; module; module = module->parent_)
    if (module->frozen_) return *module->frozen_;
  return false;
}

std::vector<NamedVariable> ModuleBase::trainable_parameters() const {
  std::vector<NamedVariable> result;
  visit([&](const ModuleBase& m) {
    if (m.frozen()) return;
    std::copy_if(m.parameters_.begin(), m.parameters_.end(), std::back_inserter(result),
                 [](const NamedVariable& p) { return !p.packed; });
  });
  return result;
}

std::vector<const ModuleBase*> ModuleBase::modules() const {
  std::vector<const ModuleBase*> result;
  visit([&](const ModuleBase& m) { result.push_back(&m); });
  return result;
}

std::vector<ModuleBase*> ModuleBase::modules() {
  std::vector<ModuleBase*> result{this};
  for (std::size_t i = 0; i < result.size(); ++i) {
    const std::vector<ModuleBase*>& children = result[i]->children_;
    result.insert(result.begin() + static_cast<std::ptrdiff_t>(i) + 1, children.begin(),
                  children.end());
  }
  return result;
}

std::int64_t ModuleBase::parameter_count() const {
  std::int64_t count = 0;
  for (const NamedVariable& p : parameters())
    if (__builtin_add_overflow(count, p.shape().elements(), &count))
      throw ShapeError(fmt::format("module \"{}\" has more parameters than can be counted", path_));
  return count;
}

Marks ModuleBase::call_marks() const {
  static std::atomic<std::uint32_t> calls{0};
  Marks marks = checkpoint_ ? in_region(current_marks(), *checkpoint_) : current_marks();
  if (block_ && marks.block == 0) marks.block = calls.fetch_add(1, std::memory_order_relaxed) + 1;
  return marks;
}

bool ModuleBase::training() const {
  for (const ModuleBase* module = this; module; module = module->parent_)
    if (module->held_) return false;
  return ForwardScope::mode() == Mode::train;
}

}  // namespace ebb::nn
