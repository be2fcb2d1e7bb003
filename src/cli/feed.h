// A loader as a training loop reads it, with the place to go on from if the run ends now.
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "ebb/data/loader.h"

namespace ebb::cli {

class Feed {
 public:
  explicit Feed(data::Loader& loader) : loader_(loader) {}

  // The batch of the next step; `done` says that its step is whole.
  Batch take();
  void done() { in_step_ = false; }
  // Makes the batch after it meanwhile, and shows it. What goes wrong is thrown by `take`: the step
  // that is under way is not concerned.
  const Batch* prefetch();

  // Where the batch stands that comes after the last whole step's.
  data::Loader::State position() const;

 private:
  data::Loader& loader_;
  std::optional<Batch> next_;
  std::exception_ptr failure_;              // in place of `next_`
  data::Loader::State next_at_, taken_at_;  // of `next_`, and of the batch that was taken last
  bool in_step_ = false;
};

// A position as text, and back; an error for what is none.
std::string text_of(const data::Loader::State& state);
data::Loader::State loader_state(const std::string& text);

// Where a loader stands that goes on for one that was at `saved`: at the same place if it has the
// same items in the same batches; with other batches, at the batch with the same item; with other
// items, at the beginning of that epoch.
data::Loader::State position_near(data::Loader::State own, const data::Loader::State& saved,
                                  std::int64_t batches);

}  // namespace ebb::cli
