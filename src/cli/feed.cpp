#include "cli/feed.h"

#include <fmt/core.h>

#include <algorithm>
#include <sstream>

#include "ebb/error.h"

namespace ebb::cli {

Batch Feed::take() {
  const bool ahead = next_ || failure_;
  taken_at_ = ahead ? next_at_ : loader_.save();
  in_step_ = true;
  if (failure_) std::rethrow_exception(failure_);
  if (!next_) return loader_.next();
  Batch batch = std::move(*next_);
  next_.reset();
  return batch;
}

const Batch* Feed::prefetch() {
  next_at_ = loader_.save();
  try {
    return &next_.emplace(loader_.next());
  } catch (...) {
    failure_ = std::current_exception();
    return nullptr;
  }
}

data::Loader::State Feed::position() const {
  if (in_step_) return taken_at_;
  return next_ || failure_ ? next_at_ : loader_.save();
}

std::string text_of(const data::Loader::State& at) {
  return fmt::format("{} {} {} {} {}", at.seed, at.epoch, at.position, at.items, at.batch);
}

data::Loader::State loader_state(const std::string& text) {
  data::Loader::State at;
  std::istringstream words(text);
  std::string more;
  if (!(words >> at.seed >> at.epoch >> at.position >> at.items >> at.batch) || words >> more ||
      at.epoch < 0 || at.position < 0 || at.items < 0 || at.batch < 1)
    throw ValueError(fmt::format("\"{}\" is not a position in the data", text));
  return at;
}

data::Loader::State position_near(data::Loader::State own, const data::Loader::State& saved,
                                  std::int64_t batches) {
  own.seed = saved.seed, own.epoch = saved.epoch, own.position = 0;
  if (own.items == saved.items && batches > 0)
    own.position = own.batch == saved.batch
                       ? saved.position
                       : std::min(saved.position * saved.batch / own.batch, batches - 1);
  return own;
}

}  // namespace ebb::cli
