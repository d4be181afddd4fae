// A model directory written by transformers gives the logits that transformers computed (tests/interop/make_golden.py).
#include <cstring>
#include <numeric>

#include "host/base/json.hpp"
#include "host/save/weights.hpp"
#include "tests/regress/small_run.hpp"

namespace chassis::test {
namespace {

const std::string kFolder = CHASSIS_TEST_SOURCE_DIR "/tests/golden/llama";

// Reads a tensor of expected.st, a file in the safetensors format.
template <typename T>
std::vector<T> expected(const std::string& name) {
  const std::string bytes = text_of_file(kFolder + "/expected.st");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  const Json entry = Json::parse(bytes.substr(8, header_bytes)).at(name);
  const size_t begin = entry.at("data_offsets").at(0), end = entry.at("data_offsets").at(1);
  std::vector<T> values((end - begin) / sizeof(T));
  std::memcpy(values.data(), bytes.data() + 8 + header_bytes + begin, end - begin);
  return values;
}

class Transformers : public WithProviders {};
INSTANTIATE_TEST_SUITE_P(, Transformers, WithProviders::all());

TEST_P(Transformers, LogitsAreReproduced) {
  constexpr int64_t kRows = 2, kLength = 41;
  const SmallRun run(GetParam());
  write_text(run.folder() / "model.toml",
             "schema_version = 1\n[run]\nmax_steps = 1\ndevice = \"cpu\"\n[model]\npath = \"" + kFolder +
                 "\"\n[[data.train]]\npath = \"none.jsonl\"\nformat = \"tokens\"\n[train]\nseq_len = 41\n"
                 "[precision]\ncompute = \"fp32\"\n[optimizer]\nlr = 1e-3\n[attention]\nplugin = \"" +
                 GetParam().attention + "\"\n[kernels]\nplugins = " + GetParam().kernels + "\n");
  Session session(load_config(run.folder() / "model.toml", {}), {.plugin_path = {CHASSIS_TEST_PLUGIN_DIR}});
  session.allocate();
  load_weights(session, kFolder);

  std::vector<int32_t> ids = expected<int32_t>("input_ids"), positions(ids.size()), documents(ids.size(), 0);
  for (int64_t row = 0; row < kRows; ++row)
    std::iota(positions.begin() + row * kLength, positions.begin() + (row + 1) * kLength, 0);
  const int64_t sizes[] = {kRows, kLength};
  const Fields fields = {{"input_ids", Tensor::borrow(ids.data(), sizes, Dtype::i32).clone()},
                         {"positions", Tensor::borrow(positions.data(), sizes, Dtype::i32).clone()},
                         {"document_ids", Tensor::borrow(documents.data(), sizes, Dtype::i32).clone()}};
  const std::vector<float> ours = floats_of(session.executor().logits(fields, {}, false));
  const std::vector<float> theirs = expected<float>("logits");
  ASSERT_EQ(ours.size(), theirs.size());
  float largest = 0.0f;
  for (size_t i = 0; i < ours.size(); ++i)
    largest = std::max(largest, std::abs(ours[i] - theirs[i]) / std::max(1.0f, std::abs(theirs[i])));
  EXPECT_LE(largest, 1e-5f);
  std::printf("largest difference %.1e\n", static_cast<double>(largest));
}

}  // namespace
}  // namespace chassis::test
