// Plans of published models from their config.json (tests/golden/published, without keys that do not matter here):
// numbers of parameters. tests/interop/published.py compares the same numbers with transformers.
#include <gtest/gtest.h>

#include <cctype>

#include "host/base/json.hpp"
#include "host/plan/plan.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

const std::string kFolder = CHASSIS_TEST_SOURCE_DIR "/tests/golden/published/";

class PublishedModels : public testing::TestWithParam<std::pair<std::string, int64_t>> {
 public:
  static std::vector<std::pair<std::string, int64_t>> all() {
    std::vector<std::pair<std::string, int64_t>> models;
    const Json counts = Json::parse(test::text_of_file(kFolder + "num_parameters.json"));
    for (const auto& [name, count] : counts.items()) models.emplace_back(name, count.get<int64_t>());
    return models;
  }
};

TEST_P(PublishedModels, HaveTheirNumberOfParameters) {
  const auto& [name, num_parameters] = GetParam();
  test::ScratchDirectory scratch;
  test::write_text(scratch / "config.json", test::text_of_file(kFolder + name + ".json"));
  const std::string toml =
      "schema_version = 1\n[run]\nname = \"plan\"\nmax_steps = 1\ndevice = \"cpu\"\n[model]\npath = \"" +
      scratch.path() +
      "\"\n[[data.train]]\npath = \"nowhere.jsonl\"\nformat = \"tokens\"\n[train]\nseq_len = 512\n"
      "global_batch_size = 8\n[optimizer]\nplugin = \"adamw\"\nlr = 1e-5\n[precision]\ncompute = \"bf16\"\n"
      "[attention]\nplugin = \"sdpa\"\n[kernels]\nplugins = [\"aten\", \"naive\", \"grouped\"]\n"
      "[[parallel]]\nplugin = \"fsdp2\"\n[plugins]\npath = [\"" CHASSIS_TEST_PLUGIN_DIR "\"]\n";
  PlanRequest request;
  request.config = [&](const std::vector<std::string>& more) { return load_config_text(toml, "run.toml", more); };
  request.world_size = 8;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.num_parameters, num_parameters);
  EXPECT_EQ(plan.num_trained, num_parameters);
  // fp32 masters, divided by 8.
  uint64_t held = 0;
  for (const auto& rank : plan.ranks) held = std::max(held, rank.peak_bytes());
  EXPECT_GE(held, static_cast<uint64_t>(num_parameters) / 8 * 4);
}
INSTANTIATE_TEST_SUITE_P(, PublishedModels, testing::ValuesIn(PublishedModels::all()), [](const auto& info) {
  std::string name = info.param.first;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
});

}  // namespace
}  // namespace chassis
