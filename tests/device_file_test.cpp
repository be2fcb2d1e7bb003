// Numbers in device files: each is used as it is, or named in an error.
#include "ebb/io/device_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ebb/error.h"
#include "ebb/probe.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using Json = nlohmann::json;

class DeviceFile : public testing::Test {
 protected:
  DeviceFile() : good_(Json::parse(io::describe_device(some_rates()))) {}

  static Rates some_rates() {
    Rates rates;
    rates.name = "a device";
    rates.memory = {std::int64_t{1} << 30};
    rates.cache = {1 << 20};
    rates.cache_bandwidth = 1e11;
    return rates;
  }
  Rates load(const Json& device) {
    return io::load_device(folder_.write("device.json", device.dump()));
  }
  // The error's text; empty without one.
  std::string error_of(const Json& device) {
    try {
      (void)load(device);
    } catch (const FileError& error) {
      return error.what();
    }
    return {};
  }

  const Json good_;
  TemporaryFolder folder_;
};

TEST_F(DeviceFile, TakesBytesInBothNotations) {
  Json device = good_;
  device["memory_bytes"] = 141e9;
  EXPECT_EQ(load(device).memory.count, 141'000'000'000);
  device["memory_bytes"] = 141'000'000'001;
  EXPECT_EQ(load(device).memory.count, 141'000'000'001);
}

TEST_F(DeviceFile, RefusesBytesThatNoMachineHas) {
  ASSERT_EQ(error_of(good_), "");
  for (const char* field : {"memory_bytes", "cache_bytes"})
    for (const Json& bytes :
         {Json(-1), Json(8.4e102), Json(std::uint64_t{1} << 63), Json("1 GiB")}) {
      Json device = good_;
      device[field] = bytes;
      EXPECT_NE(error_of(device).find("\"" + std::string(field) + "\" must be"), std::string::npos)
          << field << " " << bytes << ": " << error_of(device);
    }
}

TEST_F(DeviceFile, RefusesRatesThatOverflow) {
  for (const char* field : {"bytes_per_second", "launch_us", "cache_bytes_per_second"})
    for (const Json& rate : {Json(0), Json(-1.0), Json(1e-300), Json(1e300), Json(nullptr)}) {
      Json device = good_;
      device[field] = rate;
      EXPECT_NE(error_of(device).find("\"" + std::string(field) + "\" must be a number from"),
                std::string::npos)
          << field << " " << rate << ": " << error_of(device);
    }
}

}  // namespace
}  // namespace ebb::test
