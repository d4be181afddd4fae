// Scans the input as a file of a checkpoint, then as the pickle inside the ZIP files of a checkpoint. Each scan must
// end in valid tensors or in a Defect.
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/plugins/format/zero_import/torch_writer.hpp"

using namespace zero_import;

namespace {

void run(const testing::Files& files) {
  const Source bytes = testing::source_of(files);
  Source source = bytes;
  source.read = [&](uint32_t file, uint64_t offset, uint64_t num_bytes, void* out) {
    if (offset > bytes.files[file].num_bytes || num_bytes > bytes.files[file].num_bytes - offset) std::abort();
    bytes.read(file, offset, num_bytes, out);
  };
  Sink sink;
  sink.tensor = [&](const FoundTensor& t) {
    const uint64_t held = bytes.files[t.file].num_bytes;
    if (t.offset > held || t.num_bytes > held - t.offset) std::abort();
    if (t.box_offset.size() != t.box_shape.size() || t.global_shape.size() != t.box_shape.size()) std::abort();
  };
  sink.metadata = sink.warning = [](std::string_view, std::string_view) {};
  try {
    scan(source, sink);
  } catch (const Defect&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  run({{"zero_pp_rank_0_mp_rank_00_optim_states.pt", bytes}});
  // Storages of the same sizes as in the seeds.
  std::vector<testing::Stored> members = {{"a/data.pkl", bytes}};
  for (int key = 0; key < 8; ++key)
    members.push_back({"a/data/" + std::to_string(key), std::string(key % 3 == 0 ? 4 : 16, '\1')});
  const std::string file = testing::zip_of(members);
  run({{"mp_rank_00_model_states.pt", file},
       {"zero_pp_rank_0_mp_rank_00_model_states.pt", file},
       {"zero_pp_rank_0_mp_rank_00_optim_states.pt", file}});
  return 0;
}
