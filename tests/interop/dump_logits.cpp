// dump_logits CONFIG BATCH OUT [KEY=VALUE…] [--plugin-path DIR]…: the logits of a model directory for given tokens, for
// the Python tests beside it. BATCH holds int32: B, T, then input_ids, positions and document_ids, each [B, T]; OUT
// gets [B, T, vocab] as float32, or for a sequence-classification head the scores at the last position, [B, labels].
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/compile/objective_pass.hpp"
#include "host/save/weights.hpp"
#include "host/session/session.hpp"

namespace chassis {
namespace {

Fields read_batch(const std::string& path, Device device) {
  const std::string bytes = read_file(path);
  std::vector<int32_t> words(bytes.size() / sizeof(int32_t));
  std::memcpy(words.data(), bytes.data(), words.size() * sizeof(int32_t));
  const int64_t sizes[] = {words.at(0), words.at(1)};
  const auto count = static_cast<size_t>(sizes[0] * sizes[1]);
  CHASSIS_CHECK(words.size() == 2 + 3 * count, "the batch has three fields");
  Fields fields;
  size_t begin = 2;
  for (const char* name : {"input_ids", "positions", "document_ids"}) {
    fields[name] = Tensor::empty(sizes, Dtype::i32, device);
    fields[name].copy_from(Tensor::borrow(words.data() + begin, sizes, Dtype::i32));
    begin += count;
  }
  return fields;
}

void dump(const std::vector<std::string>& files, const std::vector<std::string>& overrides,
          const std::vector<std::string>& plugin_path) {
  Session session(load_config(files.at(0), overrides, ConfigUse::kWeights), {.plugin_path = plugin_path});
  session.allocate();
  load_weights(session, session.settings().model.path);
  const Fields fields = read_batch(files.at(1), session.device());
  const BlockType& last = *session.program().last_block();
  Tensor out;
  if (last.outputs.contains(kScoresOutput)) {
    const Tensor scores = session.executor().outputs(Purpose::kLoss, fields).at(kScoresOutput);
    out = scores.narrow(1, scores.size(1) - 1, 1).contiguous();
  } else {
    out = session.executor().logits(fields, {}, false);
  }
  const Tensor logits = out.to(Dtype::f32).to(Device{}).contiguous();
  write_file_atomic(files.at(2), {static_cast<const char*>(logits.data()), logits.num_bytes()});
}

}  // namespace
}  // namespace chassis

int main(int argc, char** argv) {
  std::vector<std::string> files, overrides, plugin_path;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--plugin-path" && i + 1 < argc)
      plugin_path.push_back(argv[++i]);
    else if (files.size() < 3)
      files.push_back(argument);
    else
      overrides.push_back(argument);
  }
  try {
    chassis::dump(files, overrides, plugin_path);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
