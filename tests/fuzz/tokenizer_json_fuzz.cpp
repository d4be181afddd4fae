// The entry point of the fuzz target in plugins/tokenizer/hf/fuzz.
#include <cstddef>
#include <cstdint>

extern "C" void chassis_fuzz_tokenizer_json(const uint8_t* data, size_t num_bytes);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  chassis_fuzz_tokenizer_json(data, num_bytes);
  return 0;
}
