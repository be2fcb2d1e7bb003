// A plan: what runs in which order, and where every byte lies. It is plain data, in tables.
#pragma once

#include <array>
#include <iosfwd>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/error.h"
#include "ebb/graph.h"
#include "ebb/id.h"
#include "ebb/node.h"
#include "ebb/op.h"
#include "ebb/rates.h"
#include "ebb/recompute.h"
#include "ebb/storage.h"

namespace ebb {

// Bytes by category, indexed by Category.
struct CategoryBytes {
  std::array<Bytes, category_count> values{};
  Bytes& operator[](Category c) { return values[static_cast<std::size_t>(c)]; }
  Bytes operator[](Category c) const { return values[static_cast<std::size_t>(c)]; }
  Bytes total() const;
};

struct Space;
struct Lane;
struct Leaf;
struct Value;
struct Buffer;
struct Instruction;
using SpaceId = Id<Space>;
using LaneId = Id<Lane>;
using LeafId = Id<Leaf>;
using ValueId = Id<Value>;
using BufferId = Id<Buffer>;
using InstructionId = Id<Instruction>;

// A block of memory that buffers are laid out in.
struct Space {
  Bytes size = {};  // in whole pages
  PageSize pages = PageSize::standard;
};

// A queue of instructions. Those of one lane run in their order; lanes run beside one another.
struct Lane {
  enum class Kind : std::uint8_t {
    compute,  // everything, if there is no other lane
    beside,   // what nothing else in the step waits for: updates, and sums that only they read
  };
  Kind kind = Kind::compute;
};

// A constant or a variable of the graph, which owns its bytes between runs.
struct Leaf {
  enum class Kind : std::uint8_t { constant, variable };
  Kind kind = Kind::variable;
  std::string path;
  TensorType type;
  ValueId value;           // what it holds when the step begins
  std::uint64_t node = 0;  // Node::id, by which plans of one process know that they share it
};

// What one instruction computes, or what a leaf or an input holds when the step begins.
struct Value {
  TensorType type;
  InstructionId maker;  // none for leaves and inputs
};

// Where the bytes of a buffer are.
struct Place {
  SpaceId space;  // with `offset`; or
  Bytes offset = {};
  LeafId leaf;      // the leaf that owns them; or
  int output = -1;  // the output of the program that owns them
};

// A range of memory with one purpose over part of the step.
struct Buffer {
  Bytes size = {};
  Category category = Category::activations;
  InstructionId first, last;  // instructions during which it is live, both included
  Place place;
  std::string path;     // module path of what is stored
  std::string_view op;  // what makes it

  bool in_arena() const { return static_cast<bool>(place.space); }
};

// Whether two buffers have bytes of the arena in common.
bool share_bytes(const Buffer& a, const Buffer& b);

// A tensor as an instruction sees it: a value, and where it lies in a buffer.
struct Operand {
  ValueId value;
  BufferId buffer;
  Layout layout;
  TensorType type;

  Arg arg() const { return {type, layout.strides, layout.offset}; }
};

// An input or output of the program.
struct Port {
  ValueId value;
  BufferId buffer;
  TensorType type;
};

struct Instruction {
  const Op* op = nullptr;
  Attributes attributes;
  std::string path;  // of the module whose code it is
  Marks marks;
  std::vector<Operand> inputs, outputs;
  BufferId workspace;                 // none if it needs none
  std::vector<InPlace> overwritable;  // pairs that fit, where the input is not needed any more
  Work work = Work::elementwise;
  double predicted_ms = 0.0;
  bool recomputed = false;  // runs again what an earlier instruction has computed
  LaneId lane{0};
  std::vector<InstructionId> waits;  // instructions of other lanes that must have ended before
};

enum class Release : std::uint8_t {
  at_end,  // every buffer lives until the step ends: what a program without liveness needs
  early,   // a buffer is free after its last reader, and ops write over inputs that die
};

// When variables are updated.
enum class UpdateTiming : std::uint8_t {
  last,   // in the order the graph was built: all gradients first, then all updates
  early,  // as soon as a gradient exists, so that gradients do not pile up
};

// How long the automatic strategy searches.
enum class Effort : std::uint8_t {
  quick,     // the first plan that keeps the budget, with what was not needed taken back
  thorough,  // also tries to exchange decisions: fractions of a second
};

struct PlanOptions {
  Release release = Release::early;
  UpdateTiming updates = UpdateTiming::early;
  Recompute recompute = {};          // with a budget, left at its default, it becomes automatic
  std::optional<Bytes> budget = {};  // for `Plan::peak`; one that cannot be kept is a BudgetError
  Rates rates = {};                  // of the device the plan is for
  Effort effort = Effort::thorough;
  PageSize pages = PageSize::standard;  // what the arena is counted in
  // Products and convolutions of float32 on a GPU's tensor cores: factors are rounded to 11 bits,
  // sums stay float32. Several times as fast.
  bool tf32 = false;
  // On a GPU, 2 runs what nothing in the step waits for (updates, and sums that only they read)
  // beside the rest. Changes no bit and no peak.
  int lanes = 2;
};

// A tensor that is freed and computed again when it is next needed.
struct Decision {
  std::string path, op;  // of the instruction that makes it
  Bytes bytes;
  InstructionId freed_after, needed_by;
  double recompute_ms = 0.0;  // of that instruction alone
};

struct Plan {
  Device device;  // of every instruction and buffer
  bool tf32 = false;
  std::vector<std::string> passes;  // that the planned graph went through, in order
  Table<Space> spaces;
  Table<Lane> lanes;
  Table<Leaf> leaves;
  Table<Value> values;
  Table<Buffer> buffers;
  Table<Instruction> instructions;
  std::vector<Port> inputs, outputs;

  Bytes live_peak;        // largest sum of live transient bytes: the least any arena could be
  Bytes persistent;       // constants, variables and outputs, in whole pages
  Bytes peak;             // arena() + persistent
  CategoryBytes at_peak;  // what is live at the step's fullest moment, persistent bytes included
  InstructionId peak_instruction{0};

  double predicted_ms = 0.0;           // of one step
  double predicted_keep_all_ms = 0.0;  // the same without any recomputation
  std::vector<Decision> decisions;     // what is computed again, largest first

  double made_in_ms = 0.0;  // passes and planning; nothing else that compiling a program does

  Bytes arena() const;  // all spaces: what holds the buffers that live only during a step
  bool runs_beside(const Instruction& instruction) const {
    return lanes[instruction.lane].kind == Lane::Kind::beside;
  }
  double fragmentation() const;  // arena() ÷ live_peak
  double overhead() const;       // predicted_ms ÷ predicted_keep_all_ms
  int recomputed_nodes() const;  // instructions that run something again
};

// A budget that can be kept, and what its plan costs.
struct KeptBudget {
  Bytes bytes;
  double overhead = 1.0;  // Plan::overhead()
};

inline constexpr double fast_overhead = 1.5;
struct LeastBudgets {
  KeptBudget least;  // the smallest that can be kept
  KeptBudget fast;   // the smallest found whose overhead is at most `fast_overhead`
};

// A budget that no plan of this graph keeps.
class BudgetError : public MemoryError {
 public:
  BudgetError(Bytes budget, const LeastBudgets& kept);
  Bytes budget, least;  // what was asked for, and the smallest budget that would do
  LeastBudgets kept;    // that, and the smallest fast one
};

// The constants and variables that a plan's leaves stand for, in their order.
using Leaves = std::vector<std::shared_ptr<Node>>;
Leaves leaves_of(const Plan& plan, const Graph& graph);

// Lays out a graph whose kernels can read every input as it lies (see passes).
Plan make_plan(const Graph& graph, const PlanOptions& options = {});

// A plan, or the smallest budget that one could keep.
struct PlanResult {
  std::optional<Plan> plan;
  std::optional<KeptBudget> least;  // where there is no plan for want of memory
};
// The same without an exception for a budget that cannot be kept. Where no plan can be faster than
// `faster_than` milliseconds, none is made.
PlanResult try_plan(const Graph& graph, const PlanOptions& options,
                    double faster_than = std::numeric_limits<double>::infinity());

// The smallest budget `make_plan` can keep for this graph, and beside it the smallest fast one.
Bytes least_budget(const Graph& graph, const PlanOptions& options);
LeastBudgets least_budgets(const Graph& graph, const PlanOptions& options,
                           std::optional<KeptBudget> known_least = {});

// "the smallest that can is ... bytes, at 2.10 × the time of keeping all; ... is enough for 1.45
// ×".
std::string to_string(const LeastBudgets& budgets);
// A readable summary: peak, categories, arena and fragmentation.
std::string to_string(const Plan& plan);
std::ostream& operator<<(std::ostream& out, const Plan& plan);

}  // namespace ebb
