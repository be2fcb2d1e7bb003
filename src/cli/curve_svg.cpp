// The curve of peak against time as a picture: one self-contained SVG file.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cli/curve.h"

namespace ebb::cli {
namespace {

constexpr double width = 640.0, height = 360.0, left = 76.0, right = 24.0, top = 40.0,
                 bottom = 52.0;

// Round numbers from low to high, about `count` of them.
std::vector<double> ticks(double low, double high, int count) {
  const double raw = (high - low) / count;
  if (!(raw > 0.0)) return {low};
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = 10.0 * power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0})
    if (factor * power >= raw * 0.999) {
      step = factor * power;
      break;
    }
  std::vector<double> result;
  for (double value = std::ceil(low / step) * step; value <= high; value += step)
    result.push_back(value);
  return result;
}

struct Scale {
  double from, to, begin, end;
  double operator()(double value) const {
    return begin + (value - from) / (to - from) * (end - begin);
  }
};

// The scale, with a little room on both sides of the values.
Scale scale_of(double low, double high, double begin, double end) {
  const double room = high > low ? 0.08 * (high - low) : 0.08 * high;
  return {std::max(0.0, low - room), high + room, begin, end};
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '<')
      result += "&lt;";
    else if (c == '&')
      result += "&amp;";
    else
      result += c;
  }
  return result;
}

}  // namespace

std::string to_svg(const std::vector<CurvePoint>& curve, const std::string& title) {
  const auto mib = [](const CurvePoint& p) {
    return static_cast<double>(p.peak.count) / (1 << 20);
  };
  double least = mib(curve.front()), most = least, fast = curve.front().ms, slow = fast;
  for (const CurvePoint& p : curve) {
    least = std::min(least, mib(p)), most = std::max(most, mib(p));
    fast = std::min(fast, p.ms), slow = std::max(slow, p.ms);
  }
  const Scale x = scale_of(least, most, left, width - right),
              y = scale_of(fast, slow, height - bottom, top);
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\" "
      "font-family=\"system-ui, sans-serif\" font-size=\"12\">\n"
      "<style>text{{fill:#3c4450}}.title{{font-size:14px;font-weight:600;fill:#1b2029}}"
      ".grid{{stroke:#dde1e7}}.line{{fill:none;stroke:#0072b2;stroke-width:2}}"
      "circle{{fill:#fff;stroke:#0072b2;stroke-width:2}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      "<text class=\"title\" x=\"{}\" y=\"20\">{}</text>\n",
      width, height, width, height, left, escaped(title));
  for (const double ms : ticks(y.from, y.to, 5))
    text += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.4g} ms</text>\n",
        left, width - right, y(ms), left - 8.0, y(ms) + 4.0, ms);
  for (const double value : ticks(x.from, x.to, 5))
    text += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.6g} MiB</text>\n",
                        x(value), height - bottom + 20.0, value);
  text += fmt::format(
      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">peak memory, against predicted time a "
      "step</text>\n<path class=\"line\" d=\"",
      (left + width - right) / 2.0, height - bottom + 42.0);
  for (std::size_t i = 0; i < curve.size(); ++i)
    text += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", x(mib(curve[i])), y(curve[i].ms));
  text += "\"/>\n";
  for (const CurvePoint& p : curve)
    text += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"><title>{}, {:.2f} ms</title></circle>\n",
        x(mib(p)), y(p.ms), to_string(p.peak), p.ms);
  return text + "</svg>\n";
}

}  // namespace ebb::cli
