// The text of a progress line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ebb/bytes.h"

namespace ebb::report {

struct ProgressState {
  std::string_view label;
  std::int64_t step = 0, total = 0;  // total is 0 when not known
  double loss = 0.0;
  Bytes memory;
  std::optional<double> seconds_a_step, seconds_left, seconds_in_all;  // if known
  std::optional<double> rate = {}, test_loss = {};
};

struct LineStyle {
  int width;  // columns at most
  bool unicode;
};

// "45 s", "3 min 05 s", "2 h 05 min", "3 d 04 h".
std::string duration_text(double seconds);

// "epoch 3  step 120/1000 (12%)  loss 2.3026  test 2.4107  rate 3e-04  210 ms/step  1.50 GiB  3 min
// 05 s left", added to `text`.
void append_plain_line(std::string& text, const ProgressState& state);

// The same with a bar in place of the percentage where there is room for one, cut to the width.
void append_bar_line(std::string& text, const ProgressState& state, LineStyle style);

}  // namespace ebb::report
