// Generation of text by a model that predicts the next token, in planned memory.
//
// Two programs share one arena. `prefill` reads a piece of one sequence's prompt; `decode` takes
// one step of all running sequences. Keys and values are variables of a planned size, with one row
// for each sequence that runs at a time. A sequence joins when a row is free and leaves when it
// ends, so any number of requests runs in the same memory. Sampled ids stay on the device as the
// next step's input; the host only reads them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ebb/decode.h"
#include "ebb/models/causal_lm.h"
#include "ebb/nn/decode_scope.h"
#include "ebb/nn/module.h"
#include "ebb/program.h"

namespace ebb::generate {

struct Options {
  std::int64_t sequences = 1;  // that run at a time
  std::int64_t tokens = 0;     // of a sequence, prompt included; 0: the model's context
  std::int64_t chunk = 0;      // tokens of a prompt that are read at a time; 0: default_chunk
  nn::CacheForm cache = nn::CacheForm::model;  // of keys and values
  SampleOptions sampling = {};
  std::uint64_t seed = 0;              // of sampling
  std::optional<Bytes> budget = {};    // MemoryError if the planned peak is more
  std::vector<std::int32_t> end = {};  // ids that end a sequence
  CompileOptions compile = {};         // must have no budget; `budget` above limits the plan
};

// By the device: a GPU needs more tokens at a time to be busy.
std::int64_t default_chunk(Device device);

struct Request {
  std::vector<std::int32_t> prompt;
  std::int64_t max_tokens = 0;  // to generate
};

enum class Ended : std::uint8_t {
  length,      // max_tokens were generated, or the sequence has reached Options::tokens
  token,       // by one of Options::end, which is the last id
  caller,      // by the caller's function
  stopped,     // not finished: the caller's function ended the whole run
  not_finite,  // the next logits are NaN or infinite
};

struct Result {
  std::vector<std::int32_t> ids;  // generated
  Ended ended = Ended::length;
};

enum class Continue : std::uint8_t {
  yes,
  no,       // the sequence ends
  stop_all  // the run ends; unfinished sequences, including this one, are Ended::stopped
};
// Called for every generated token with the number of its request and all ids so far. Its result
// says whether the sequence goes on.
using OnToken = std::function<Continue(std::size_t request, std::span<const std::int32_t> ids)>;

// The memory of a generator, known before anything is allocated.
struct Footprint {
  Bytes peak;        // all of it
  Bytes arena;       // of the larger of the two programs
  Bytes cache;       // keys and values
  Bytes persistent;  // weights, cache and state of the sequences
};

class Generator {
 public:
  // Plans both programs. `module` and `lm` are the same model, which must outlive the generator.
  // Allocates nothing: weights may be loaded later, before `run`.
  Generator(nn::ModuleBase& module, models::CausalLm& lm, Options options = {});
  ~Generator();
  Generator(Generator&&) noexcept;

  const Footprint& footprint() const;
  const Plan& prefill_plan() const;
  const Plan& decode_plan() const;

  // Allocates everything now; otherwise the first `run` does.
  void allocate();

  // Generates for all requests, in order as rows become free. ValueError for a prompt that is
  // empty, too long or has ids outside the vocabulary, before anything runs. Logits that are not
  // finite end their own sequence (Ended::not_finite), no other.
  std::vector<Result> run(std::span<const Request> requests, const OnToken& on_token = {});

  // Seconds of the last `run` and tokens it generated; those of prompts are not counted.
  struct Speed {
    double prefill_seconds = 0.0, decode_seconds = 0.0;
    std::int64_t prefilled = 0, decoded = 0;  // tokens of prompts, and tokens of decode steps
    std::int64_t steps = 0;                   // runs of `decode`
    double tokens_per_s() const;              // of decode steps
  };
  const Speed& speed() const;

  // Resident memory of all that the plan counts; equal to footprint().peak once it has run.
  Bytes resident() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The largest number of sequences, up to `most`, whose footprint keeps the budget; 0: not even one.
std::int64_t sequences_that_fit(nn::ModuleBase& module, models::CausalLm& lm,
                                const Options& options, Bytes budget, std::int64_t most);

}  // namespace ebb::generate
