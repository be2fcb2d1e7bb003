// Reads a loader for a training loop, and knows the position to continue from if the run ends now.
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "ebb/data/loader.h"

namespace ebb::cli {

class Feed {
 public:
  explicit Feed(data::Loader& loader) : loader_(loader) {}

  // The batch of the next step. The caller reports with `done` that the step is complete.
  Batch take();
  void done() { in_step_ = false; }
  // Prepares the following batch during the step, and returns it. An error is thrown only by the
  // next `take`, because it does not affect the step in progress.
  const Batch* prefetch();

  // The position of the batch that follows the last complete step.
  data::Loader::State position() const;

 private:
  data::Loader& loader_;
  std::optional<Batch> next_;
  std::exception_ptr failure_;              // an error in place of `next_`
  data::Loader::State next_at_, taken_at_;  // of `next_`, and of the batch taken last
  bool in_step_ = false;
};

// A position as text, and back. Throws if the text is not a position.
std::string text_of(const data::Loader::State& state);
data::Loader::State loader_state(const std::string& text);

// The position from which a loader continues a run that stopped at `saved`: the same position if it
// has the same items in the same batches; with other batch sizes, the batch that contains the same
// item; with other items, the beginning of the same epoch.
data::Loader::State position_near(data::Loader::State own, const data::Loader::State& saved,
                                  std::int64_t batches);

}  // namespace ebb::cli
