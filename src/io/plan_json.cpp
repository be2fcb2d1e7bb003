#include "io/plan_json.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/json.h"
#include "ebb/error.h"
#include "io/attribute_json.h"
#include "ops/leaf/leaf.h"

namespace ebb::io {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
using Order = std::vector<std::shared_ptr<Node>>;

constexpr std::string_view lane_names[] = {"compute", "beside", "store", "fetch"};
constexpr std::string_view leaf_names[] = {"constant", "variable"};
constexpr std::string_view page_names[] = {"standard", "huge"};

OrderedJson list_json(const IntList& list) {
  return std::vector<std::int64_t>(list.begin(), list.end());
}

OrderedJson type_json(const TensorType& type) { return {name(type.dtype), list_json(type.shape)}; }

OrderedJson operands_json(const std::vector<Operand>& operands) {
  OrderedJson rows = OrderedJson::array();
  for (const Operand& o : operands)
    rows.push_back({{"value", o.value.number()},
                    {"buffer", o.buffer.number()},
                    {"type", type_json(o.type)},
                    {"strides", list_json(o.layout.strides)},
                    {"offset", o.layout.offset}});
  return rows;
}

OrderedJson ports_json(const std::vector<Port>& ports) {
  OrderedJson rows = OrderedJson::array();
  for (const Port& p : ports)
    rows.push_back(
        {{"value", p.value.number()}, {"buffer", p.buffer.number()}, {"type", type_json(p.type)}});
  return rows;
}

OrderedJson buffer_json(const Buffer& b) {
  OrderedJson row{{"bytes", b.size.count},
                  {"category", name(b.category)},
                  {"first", b.first.number()},
                  {"last", b.last.number()}};
  if (b.place.leaf)
    row["leaf"] = b.place.leaf.number();
  else if (b.place.output >= 0)
    row["output"] = b.place.output;
  else
    row["space"] = b.place.space.number(), row["offset"] = b.place.offset.count;
  row["path"] = b.path;
  row["op"] = b.op;
  return row;
}

OrderedJson instruction_json(const Instruction& i) {
  OrderedJson row{{"op", i.op->name()},
                  {"path", i.path},
                  {"attributes", attributes_json(i.attributes)},
                  {"inputs", operands_json(i.inputs)},
                  {"outputs", operands_json(i.outputs)},
                  {"lane", i.lane.number()},
                  {"work", name(i.work)},
                  {"ms", i.predicted_ms},
                  {"backward", i.marks.backward},
                  {"recomputed", i.recomputed}};
  if (i.workspace) row["workspace"] = i.workspace.number();
  for (const InstructionId other : i.waits) row["waits"].push_back(other.number());
  return row;
}

// An object of the file, with its name for errors.
class Row {
 public:
  Row(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
    if (!json.is_object()) fail("must be an object", json);
  }

  std::int64_t integer(const char* field, std::int64_t low, std::int64_t high) const {
    const Json& found = find(field);
    if (!found.is_number_integer() ||
        (found.is_number_unsigned() && found.get<std::uint64_t>() > INT64_MAX) ||
        found.get<std::int64_t>() < low || found.get<std::int64_t>() > high)
      fail(fmt::format("\"{}\" must be a whole number from {} to {}", field, low, high), found);
    return found.get<std::int64_t>();
  }
  Bytes bytes(const char* field) const { return Bytes{integer(field, 0, std::int64_t{1} << 56)}; }
  template <class T>
  Id<T> id(const char* field, std::size_t rows) const {
    return Id<T>(integer(field, 0, static_cast<std::int64_t>(rows) - 1));
  }
  double real(const char* field) const {
    const Json& found = find(field);
    if (!found.is_number()) fail(fmt::format("\"{}\" must be a number", field), found);
    return found.get<double>();
  }
  bool flag(const char* field) const {
    const Json& found = find(field);
    if (!found.is_boolean()) fail(fmt::format("\"{}\" must be true or false", field), found);
    return found.get<bool>();
  }
  std::string text(const char* field) const {
    const Json& found = find(field);
    if (!found.is_string()) fail(fmt::format("\"{}\" must be a text", field), found);
    return found.get<std::string>();
  }
  template <class Enum>
  Enum choice(const char* field, std::span<const std::string_view> names) const {
    const std::string chosen = text(field);
    for (std::size_t i = 0; i < names.size(); ++i)
      if (names[i] == chosen) return static_cast<Enum>(i);
    fail(fmt::format("\"{}\" is none of {}", field, fmt::join(names, ", ")), find(field));
  }
  // The same for enumerators, whose names `name` gives.
  template <class Enum>
  Enum named(const char* field, int count) const {
    const std::string chosen = text(field);
    for (int i = 0; i < count; ++i)
      if (name(static_cast<Enum>(i)) == chosen) return static_cast<Enum>(i);
    fail(fmt::format("\"{}\" is unknown", field), find(field));
  }
  const Op& op(const char* field) const {
    const std::string wanted = text(field);
    for (const Op* each : all_ops())
      if (each->name() == wanted) return *each;
    fail(fmt::format("\"{}\": there is no such op", field), find(field));
  }
  IntList integers(const char* field) const { return integers(find(field), field); }
  TensorType type(const char* field) const {
    const Json& found = find(field);
    if (!found.is_array() || found.size() != 2 || !found[0].is_string())
      fail(fmt::format("\"{}\" must be a dtype and a shape", field), found);
    TensorType type{integers(found[1], field), parse_dtype(found[0].get<std::string>())};
    check_size(type, field);
    return type;
  }

  bool has(const char* field) const { return json_.contains(field); }
  const Json& find(const char* field) const {
    const auto found = json_.find(field);
    if (found == json_.end()) throw ValueError(fmt::format("{}: \"{}\" is missing", place_, field));
    return *found;
  }
  // Calls make(row) for every row of a list of objects.
  template <class Make>
  void each(const char* field, const Make& make) const {
    const Json& list = array(field);
    for (std::size_t i = 0; i < list.size(); ++i)
      make(Row(list[i], fmt::format("{}{} {}", place_.empty() ? "" : place_ + ", ", field, i)));
  }
  const Json& array(const char* field) const {
    const Json& list = find(field);
    if (!list.is_array()) fail(fmt::format("\"{}\" must be a list", field), list);
    return list;
  }
  [[noreturn]] void fail(const std::string& what, const Json& found) const {
    throw ValueError(fmt::format("{}: {}, but is {}", place_, what, json_excerpt(found)));
  }
  const std::string& place() const { return place_; }

 private:
  IntList integers(const Json& found, const char* field) const {
    if (!found.is_array() || found.size() > max_rank)
      fail(fmt::format("\"{}\" must have a list of at most {} whole numbers", field, max_rank),
           found);
    IntList list;
    for (const Json& item : found) {
      if (!item.is_number_integer() || item.get<std::int64_t>() < 0 ||
          item.get<std::int64_t>() > std::int64_t{1} << 48)
        fail(fmt::format("\"{}\" must have whole numbers from 0 on", field), found);
      list.push_back(item.get<std::int64_t>());
    }
    return list;
  }
  // No product of sizes may overflow.
  void check_size(const TensorType& type, const char* field) const {
    double bytes = static_cast<double>(size_of(type.dtype).count);
    for (const std::int64_t size : type.shape)
      bytes *= static_cast<double>(std::max<std::int64_t>(size, 1));
    if (bytes > 0x1p56) fail(fmt::format("\"{}\" is too large", field), find(field));
  }

  const Json& json_;
  std::string place_;
};

class Reading {
 public:
  Reading(const Row& file, const Order& order) : file_(file), order_(order) {}

  Plan run() {
    plan_.device = order_.empty() ? device::cpu : order_.front()->device();
    plan_.tf32 = file_.flag("tf32");
    for (const Json& pass : file_.array("passes"))
      plan_.passes.push_back(Row({{"pass", pass}}, "passes").text("pass"));
    plan_.tuning = parse_tuning(json_text(file_.find("tuning")), "tuning");
    // Rows refer to tables that are read later, so only the lengths of these tables are checked
    // here.
    values_ = file_.array("values").size();
    buffers_ = file_.array("buffers").size();
    instructions_ = file_.array("instructions").size();
    file_.each("spaces", [&](const Row& r) {
      plan_.spaces.add({r.bytes("bytes"), r.choice<PageSize>("pages", page_names),
                        r.choice<Tier>("tier", tier_names), r.bytes("alignment")});
    });
    for (const Json& lane : file_.array("lanes"))
      plan_.lanes.add({Row({{"kind", lane}}, "lanes").choice<Lane::Kind>("kind", lane_names)});
    file_.each("leaves", [&](const Row& r) { plan_.leaves.add(leaf(r)); });
    file_.each("values", [&](const Row& r) {
      plan_.values.add({r.type("type"), r.has("maker") ? r.id<Instruction>("maker", instructions_)
                                                       : InstructionId{}});
    });
    file_.each("buffers", [&](const Row& r) { plan_.buffers.add(buffer(r)); });
    file_.each("inputs", [&](const Row& r) { plan_.inputs.push_back(port(r)); });
    file_.each("outputs", [&](const Row& r) { plan_.outputs.push_back(port(r)); });
    file_.each("instructions", [&](const Row& r) { plan_.instructions.add(instruction(r)); });
    file_.each("decisions", [&](const Row& r) {
      plan_.decisions.push_back({r.text("path"), r.text("op"), r.bytes("bytes"),
                                 r.id<Instruction>("computed_at", instructions_),
                                 r.id<Instruction>("recomputed_at", instructions_), r.real("ms")});
    });
    return std::move(plan_);
  }

 private:
  Leaf leaf(const Row& r) const {
    const Node& node = *order_[r.id<Node>("node", order_.size()).index()];
    if (!is_leaf(node.op()) || &node.op() == &input_op())
      r.fail("\"node\" must be a constant or a variable of the graph", r.find("node"));
    return {r.choice<Leaf::Kind>("kind", leaf_names),
            r.text("path"),
            r.type("type"),
            r.id<Value>("value", values_),
            node.id(),
            r.choice<Tier>("tier", tier_names)};
  }

  Buffer buffer(const Row& r) const {
    Buffer b;
    b.size = r.bytes("bytes");
    b.category = r.named<Category>("category", category_count);
    const std::size_t end = std::max<std::size_t>(instructions_, 1);
    b.first = r.id<Instruction>("first", end);
    b.last = r.id<Instruction>("last", end);
    if (r.has("leaf"))
      b.place.leaf = r.id<Leaf>("leaf", plan_.leaves.size());
    else if (r.has("output"))
      b.place.output = static_cast<int>(r.integer("output", 0, std::numeric_limits<int>::max()));
    else
      b.place.space = r.id<Space>("space", plan_.spaces.size()), b.place.offset = r.bytes("offset");
    b.path = r.text("path");
    b.op = r.op("op").name();
    return b;
  }

  Port port(const Row& r) const {
    return {r.id<Value>("value", values_), r.id<Buffer>("buffer", buffers_), r.type("type")};
  }

  std::vector<Operand> operands(const Row& row, const char* field) const {
    std::vector<Operand> all;
    row.each(field, [&](const Row& r) {
      all.push_back({r.id<Value>("value", values_),
                     r.id<Buffer>("buffer", buffers_),
                     {r.integers("strides"), r.integer("offset", 0, std::int64_t{1} << 56)},
                     r.type("type")});
    });
    return all;
  }

  Instruction instruction(const Row& r) const {
    Instruction i;
    i.op = &r.op("op");
    i.path = r.text("path");
    try {
      i.attributes = attributes_from_json(*i.op, r.find("attributes"));
    } catch (const Error& error) {
      throw ValueError(
          fmt::format("{}: attributes of {}: {}", r.place(), i.op->name(), error.what()));
    }
    i.inputs = operands(r, "inputs");
    i.outputs = operands(r, "outputs");
    i.lane = r.id<Lane>("lane", plan_.lanes.size());
    i.work = r.named<Work>("work", work_count);
    i.predicted_ms = r.real("ms");
    i.marks.backward = r.flag("backward");
    i.recomputed = r.flag("recomputed");
    if (r.has("workspace")) i.workspace = r.id<Buffer>("workspace", buffers_);
    if (r.has("waits"))
      for (const Json& other : r.array("waits"))
        i.waits.push_back(
            Row({{"waits", other}}, r.place()).id<Instruction>("waits", instructions_));
    return i;
  }

  const Row& file_;
  const Order& order_;
  std::size_t values_ = 0, buffers_ = 0, instructions_ = 0;  // rows
  Plan plan_;
};

}  // namespace

OrderedJson plan_json(const Plan& plan, const Order& order) {
  std::unordered_map<std::uint64_t, std::size_t> numbers;  // of nodes in the graph
  for (std::size_t i = 0; i < order.size(); ++i) numbers[order[i]->id()] = i;
  OrderedJson spaces = OrderedJson::array(), lanes = OrderedJson::array(),
              leaves = OrderedJson::array(), values = OrderedJson::array(),
              buffers = OrderedJson::array(), instructions = OrderedJson::array(),
              decisions = OrderedJson::array();
  for (const Space& s : plan.spaces)
    spaces.push_back({{"bytes", s.size.count},
                      {"pages", page_names[static_cast<std::size_t>(s.pages)]},
                      {"tier", name(s.tier)},
                      {"alignment", s.alignment.count}});
  for (const Lane& l : plan.lanes) lanes.push_back(lane_names[static_cast<std::size_t>(l.kind)]);
  for (const Leaf& l : plan.leaves)
    leaves.push_back({{"kind", leaf_names[static_cast<std::size_t>(l.kind)]},
                      {"path", l.path},
                      {"type", type_json(l.type)},
                      {"value", l.value.number()},
                      {"node", numbers.at(l.node)},
                      {"tier", name(l.tier)}});
  for (const Value& v : plan.values) {
    values.push_back({{"type", type_json(v.type)}});
    if (v.maker) values.back()["maker"] = v.maker.number();
  }
  for (const Buffer& b : plan.buffers) buffers.push_back(buffer_json(b));
  for (const Instruction& i : plan.instructions) instructions.push_back(instruction_json(i));
  for (const Decision& d : plan.decisions)
    decisions.push_back({{"path", d.path},
                         {"op", d.op},
                         {"bytes", d.bytes.count},
                         {"computed_at", d.computed_at.number()},
                         {"recomputed_at", d.recomputed_at.number()},
                         {"ms", d.recompute_ms}});
  return {{"tf32", plan.tf32},
          {"passes", plan.passes},
          {"tuning", parse_ordered_json(tuning_text(plan.tuning))},
          {"spaces", spaces},
          {"lanes", lanes},
          {"leaves", leaves},
          {"values", values},
          {"buffers", buffers},
          {"inputs", ports_json(plan.inputs)},
          {"outputs", ports_json(plan.outputs)},
          {"instructions", instructions},
          {"decisions", decisions}};
}

Plan plan_from_json(const Json& object, const Order& order) {
  const Row file(object, "");
  return Reading(file, order).run();
}

}  // namespace ebb::io
