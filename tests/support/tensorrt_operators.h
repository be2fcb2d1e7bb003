// The ONNX operators that TensorRT 10.15 takes, and of which types of numbers, by the table that
// its ONNX parser publishes: https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
// (opsets 9 to 24). Operators with restrictions that a graph might break are left out, except those
// whose restriction the test checks or the comment names.
#pragma once

#include <map>
#include <string>

namespace ebb::test {

struct TensorRtTypes {
  bool real = false;   // float32, float16 and bfloat16
  bool whole = false;  // int32 and int64
  bool boolean = false;
};

inline const std::map<std::string, TensorRtTypes> tensorrt_operators = [] {
  std::map<std::string, TensorRtTypes> all;
  const auto add = [&](TensorRtTypes types, std::initializer_list<const char*> names) {
    for (const char* name : names) all[name] = types;
  };
  add({.real = true}, {"Acos",
                       "Acosh",
                       "Asin",
                       "Asinh",
                       "Atan",
                       "Atanh",
                       "BatchNormalization",
                       "Ceil",
                       "Celu",
                       "Clip",
                       "Conv",
                       "ConvTranspose",
                       "Cos",
                       "Cosh",
                       "CumSum",  // its axis is a constant
                       "Einsum",
                       "Elu",
                       "Erf",
                       "Exp",
                       "Floor",
                       "Gemm",
                       "GlobalAveragePool",
                       "GlobalLpPool",
                       "GlobalMaxPool",
                       "GroupNormalization",
                       "HardSigmoid",
                       "HardSwish",
                       "InstanceNormalization",
                       "IsInf",
                       "LRN",
                       "LayerNormalization",  // its first output alone
                       "LeakyRelu",
                       "Log",
                       "LogSoftmax",
                       "LpNormalization",
                       "MatMul",
                       "PRelu",
                       "RMSNormalization",
                       "Reciprocal",
                       "Round",
                       "Selu",
                       "Sigmoid",
                       "Sin",
                       "Sinh",
                       "Softmax",
                       "Softplus",
                       "Softsign",
                       "Sqrt",
                       "Tan",
                       "Tanh",
                       "ThresholdedRelu"});
  add({.real = true, .whole = true},
      {"Abs", "Add", "ArgMax", "ArgMin", "DepthToSpace", "Div", "Equal", "Gelu", "Greater",
       "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Neg",
       "Pad", "Pow", "Range", "Relu", "Sign", "SpaceToDepth", "Sub", "Sum",
       // their axes are initializers
       "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
       "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"});
  add({.real = true, .whole = true, .boolean = true},
      {"Cast",      "CastLike", "Concat",         "Constant", "ConstantOfShape", "Expand",
       "Flatten",   "Gather",   "GatherElements", "GatherND", "Identity",        "Reshape",
       "Shape",     "Size",     "Slice",          "Split",    "Squeeze",         "Tile",
       "Transpose", "Trilu",    "Unsqueeze",      "Where"});
  add({.boolean = true}, {"And", "Not", "Or", "Xor"});
  // Of int8 and int4, without a zero point.
  add({.whole = true}, {"DequantizeLinear"});
  return all;
}();

}  // namespace ebb::test
