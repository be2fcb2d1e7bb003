// What is known of the algorithms in a device's libraries: for a matrix product or a convolution of
// given sizes, which algorithm to use and how much workspace it takes. Only the libraries on the
// device itself can answer that, so `tune` (ebb/probe.h) queries and times them, and the answers
// are kept as data. Planning reads this data, needs no device, and gives the same plan on every
// machine.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "ebb/bytes.h"

namespace ebb {

// The algorithm for one call of a library.
struct TunedCall {
  int choice = 0;   // its number among those that the library offers; -1: it offers none
  Bytes workspace;  // bytes that it takes
  double ms = 0.0;  // the time it took; 0: not timed, because little could be gained

  friend bool operator==(const TunedCall&, const TunedCall&) = default;
};

struct LibraryTuning {
  std::string version;                     // choices are numbers among what this version offers
  std::map<std::string, TunedCall> calls;  // by all numbers that an algorithm depends on

  friend bool operator==(const LibraryTuning&, const LibraryTuning&) = default;
};

struct Tuning {
  std::string device;                              // "NVIDIA H200"
  std::map<std::string, LibraryTuning> libraries;  // by their names

  // Adds the entries of another tuning. If a library's version differs, only the other's are kept.
  void take(const Tuning& other);
  friend bool operator==(const Tuning&, const Tuning&) = default;
};

// The entries of a tuning that one planner or program reads. It records them, so that a plan can
// carry all that it depends on.
class TuningUse {
 public:
  // `before_asking` is called once, before the first library is asked (Purpose::tune).
  explicit TuningUse(const Tuning& known, std::function<void()> before_asking = {});

  // Null if the call is not known or is of another version; an empty version matches any.
  const TunedCall* find(const std::string& library, const std::string& call,
                        const std::string& version = {});
  // Adds a call that is not known: `ask` queries the library, which has this version.
  const TunedCall* add(const std::string& library, const std::string& call,
                       const std::string& version, const std::function<TunedCall()>& ask);
  // The version that the library's calls are of; empty where none are known.
  std::string version_of(const std::string& library) const;

  const Tuning& used() const { return used_; }  // what was found or added
  int added() const { return added_; }
  // Calls that were neither found nor added, as (library, call).
  const std::set<std::pair<std::string, std::string>>& missing() const { return missing_; }

 private:
  const Tuning* known_;
  std::function<void()> before_asking_;
  Tuning used_;
  int added_ = 0;
  std::set<std::pair<std::string, std::string>> missing_;
};

// As JSON, and back. Errors name `place`, what was expected and what came.
std::string tuning_text(const Tuning& tuning);
Tuning parse_tuning(std::string_view text, const std::string& place);

}  // namespace ebb
