// The evaluations of a run: which one was best, and whether the run should stop because none has
// been better for long enough.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace ebb::cli {

struct Judged {
  std::int64_t step = 0;
  std::vector<double> metrics;  // the test loss first
};

class EarlyStopping {
 public:
  // Without a patience, the run is never stopped.
  explicit EarlyStopping(std::optional<std::int64_t> patience = {}) : patience_(patience) {}

  // Returns whether this test loss is the lowest so far. A loss that is not finite never is.
  bool add(std::int64_t step, double test_loss);
  bool stops() const { return patience_ && waited_ >= *patience_; }

  std::optional<std::int64_t> best_step() const { return best_step_; }
  double best_loss() const { return best_loss_; }
  std::int64_t waited() const { return waited_; }  // evaluations since the best one

  // The state as a note of a checkpoint, and back. Throws if the text is not such a note.
  std::string note() const;
  void restore(const std::string& note);

 private:
  std::optional<std::int64_t> patience_, best_step_;
  double best_loss_ = std::numeric_limits<double>::infinity();
  std::int64_t waited_ = 0;
};

}  // namespace ebb::cli
