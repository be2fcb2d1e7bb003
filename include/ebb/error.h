// The exceptions ebb throws. The library never exits or aborts; a message names the place, the
// expected value and the given one.
#pragma once

#include <stdexcept>
#include <string>

namespace ebb {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Shapes that do not fit an op or each other.
class ShapeError : public Error {
 public:
  using Error::Error;
};

// A dtype an op does not take, or no kernel for it.
class DTypeError : public Error {
 public:
  using Error::Error;
};

// Tensors on different devices, or a device that is not there.
class DeviceError : public Error {
 public:
  using Error::Error;
};

// An attribute, option or number outside its range.
class ValueError : public Error {
 public:
  using Error::Error;
};

// A file that cannot be read, written or understood.
class FileError : public Error {
 public:
  using Error::Error;
};

// Memory that cannot be allocated.
class MemoryError : public Error {
 public:
  using Error::Error;
};

}  // namespace ebb
