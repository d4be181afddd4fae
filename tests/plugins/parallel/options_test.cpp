// Options without effect are refused with advice, or counted.
#include <gtest/gtest.h>

#include "host/base/log.hpp"
#include "tests/regress/planned_rank.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

std::string refusal(const std::string& table) {
  try {
    PlannedRank rank(divisible_llama("[[parallel]]\n" + table), 2, 0, {"train.global_batch_size=2"});
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

uint64_t counted(const std::string& table, const std::string& key) {
  log::reset_counted_warnings();
  EXPECT_EQ(refusal(table), "accepted");
  uint64_t times = 0;
  for (const auto& [known, count] : counted_warnings())
    if (known.find(key) != std::string::npos) times += count;
  return times;
}

TEST(OptionsOfFsdp2, AreRefusedWhereTheyHaveNoEffect) {
  EXPECT_HAS(refusal("plugin = \"fsdp2\"\npin_memory = false"),
             "pin_memory has no effect while nothing is offloaded; remove it or set offload = \"cpu\"");
  EXPECT_HAS(refusal("plugin = \"fsdp2\"\nreshard_to = 2\nreshard_after_forward = \"never\""), "set one or the other");
  EXPECT_HAS(refusal("plugin = \"fsdp2\"\nreduce_every_microbatch = false\nall_reduce_every_microbatch = true"),
             "set one or the other");
  EXPECT_EQ(refusal("plugin = \"fsdp2\"\npin_memory = true\noffload = \"cpu\""), "accepted");
  EXPECT_EQ(counted("plugin = \"fsdp2\"\nall_reduce_every_microbatch = true", "no replicas"), 1u);
}

TEST(OptionsOfZero, AreRefusedWhereTheyHaveNoEffect) {
  EXPECT_HAS(refusal("plugin = \"zero\"\npin_memory = false"), "pin_memory has no effect while nothing is offloaded");
  EXPECT_HAS(refusal("plugin = \"zero\"\noffload_optimizer_fraction = 0.5"),
             "remove it or set offload_optimizer_device = \"cpu\"");
  EXPECT_HAS(refusal("plugin = \"zero\"\noffload_param_fraction = 0.5"),
             "remove it or set offload_param_device = \"cpu\"");
  EXPECT_HAS(refusal("plugin = \"zero\"\nstage = 2\nstage3_max_reuse_distance = 5"),
             "has no effect in stage 2; remove it or set stage = 3");
  EXPECT_EQ(refusal("plugin = \"zero\"\noffload_optimizer_device = \"cpu\"\noffload_optimizer_fraction = "
                    "0.5\npin_memory = false"),
            "accepted");
  EXPECT_EQ(counted("plugin = \"zero\"\nstage3_prefetch_bucket_size = 5", "no prefetch"), 1u);
  EXPECT_EQ(counted("plugin = \"zero\"\nstage3_prefetch_bucket_size = 5\noverlap_comm = \"true\"", "no prefetch"), 0u);
}

TEST(Offloading, OnTheCpuIsCountedOnceAndDefaultsAreNot) {
  EXPECT_EQ(counted("plugin = \"fsdp2\"\noffload = \"cpu\"", "offload"), 1u);
  EXPECT_EQ(counted("plugin = \"fsdp2\"", ""), 0u);
  EXPECT_EQ(counted("plugin = \"zero\"", ""), 0u);
}

}  // namespace
}  // namespace chassis::test
