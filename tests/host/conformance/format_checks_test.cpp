// The conformance tests of formats find each fault of a faulty format.
#include "host/conformance/format_checks.hpp"

#include <sstream>

#include "tests/host/checkpoint/fixture.hpp"
#include "tests/host/checkpoint/scripted_format.hpp"

namespace chassis {
namespace {

using namespace testing;

// One file: a line for each tensor, an empty line, the tensors. Correct, except for the fault that a test sets.
class ToyFormat {
 public:
  ToyFormat() {
    format_.layout = [this](const chassis_save_request_t& request, const chassis_layout_sink_t& out) {
      return guarded([&] { layout(request, out); });
    };
    format_.scan = [this](const chassis_directory_t& directory, const chassis_scan_sink_t& out) {
      return guarded([&] { scan(directory, out); });
    };
  }
  std::vector<std::string> failures() const { return format_failures(format_.plugin); }

  std::function<bool(const chassis_disk_tensor_t&)> refuses, omits;
  std::function<std::string(std::string)> stored_name = [](std::string name) { return name; };
  uint64_t offset_error = 0;  // subtracted from the offsets that scan returns
  bool counts_layouts = false;

 private:
  void layout(const chassis_save_request_t& request, const chassis_layout_sink_t& out) {
    std::ostringstream header;
    if (counts_layouts) header << "layout " << ++num_layouts_;
    uint64_t num_bytes = 0;
    for (uint32_t i = 0; i < request.num_tensors; ++i) {
      const chassis_disk_tensor_t& t = *request.tensors[i];
      if (refuses && refuses(t)) throw plugin_error("no room");
      if (!std::equal(t.box_shape, t.box_shape + t.num_dims, t.global_shape)) throw plugin_error("whole tensors only");
      if (!omits || !omits(t)) {
        header << stored_name(std::string(view_of(t.name))) << '\t' << t.dtype << '\t' << t.num_bytes << '\t'
               << t.num_dims;
        for (uint32_t d = 0; d < t.num_dims; ++d) header << ' ' << t.global_shape[d];
        header << '\n';
      }
      num_bytes += t.num_bytes;
    }
    header << '\n';
    const std::string text = header.str();
    throw_if_failed(out.file(&out, str_of("toy"), str_of(text), text.size() + num_bytes, 0), "file");
    uint64_t offset = text.size();
    for (uint32_t i = 0; i < request.num_tensors; ++i) {
      throw_if_failed(out.place(&out, i, 0, offset), "place");
      offset += request.tensors[i]->num_bytes;
    }
  }

  void scan(const chassis_directory_t& directory, const chassis_scan_sink_t& out) {
    for (uint32_t file = 0; file < directory.num_files; ++file) {
      chassis_str_t path{};
      uint64_t size = 0;
      throw_if_failed(directory.entry(&directory, file, &path, &size), "entry");
      if (view_of(path) != "toy") continue;
      std::string text(size, '\0');
      throw_if_failed(directory.read(&directory, file, 0, size, text.data()), "read");
      uint64_t offset = text.find("\n\n") + 2;
      if (text.find("\n\n") == text.npos) throw storage_error("the header does not end");
      std::istringstream lines(text.substr(0, offset - 1));
      for (std::string line; std::getline(lines, line);) {
        std::istringstream rest(line.substr(line.find('\t')));
        chassis_disk_tensor_t t{};
        const std::string name = line.substr(0, line.find('\t'));
        rest >> t.dtype >> t.num_bytes >> t.num_dims;
        int64_t sizes[8] = {}, origin[8] = {};
        for (uint32_t d = 0; d < t.num_dims; ++d) rest >> sizes[d];
        t.struct_size = sizeof t;
        t.name = str_of(name);
        t.global_shape = t.box_shape = sizes;
        t.box_offset = origin;
        const uint64_t at = t.num_bytes > 0 ? offset - offset_error : offset;
        throw_if_failed(out.tensor(&out, &t, file, at), "tensor");
        offset += t.num_bytes;
      }
      return;
    }
    throw storage_error("there is no toy");
  }

  ScriptedFormat format_;
  int num_layouts_ = 0;
};

bool has(const std::vector<std::string>& failures, const std::string& part) {
  return std::any_of(failures.begin(), failures.end(), [&](const std::string& f) { return f.find(part) != f.npos; });
}

std::string text_of(const std::vector<std::string>& failures) {
  std::string text;
  for (const std::string& failure : failures) text += failure + "\n";
  return text;
}

TEST(FormatConformance, OurFormatsPass) {
  EXPECT_EQ(text_of(format_failures(native())), "");
  EXPECT_EQ(text_of(format_failures(huggingface())), "");
  EXPECT_EQ(text_of(ToyFormat().failures()), "");
}

TEST(FormatConformance, AFormatMayRefuseDtypesButNotFp32) {
  ToyFormat toy;
  toy.refuses = [](const chassis_disk_tensor_t& t) { return t.dtype == CHASSIS_DTYPE_BOOL; };
  EXPECT_EQ(text_of(toy.failures()), "");
  toy.refuses = [](const chassis_disk_tensor_t& t) { return t.dtype == CHASSIS_DTYPE_F32; };
  EXPECT_TRUE(has(toy.failures(), "f32 is refused: ")) << text_of(toy.failures());
}

TEST(FormatConformance, FindsATensorThatIsLost) {
  ToyFormat toy;
  toy.omits = [](const chassis_disk_tensor_t& t) { return t.num_bytes == 0; };
  EXPECT_TRUE(has(toy.failures(), "f32: ")) << text_of(toy.failures());
  toy.omits = nullptr;
  toy.stored_name = [](std::string name) { return std::erase(name, '"'), name; };
  EXPECT_TRUE(has(toy.failures(), "an odd name: ")) << text_of(toy.failures());
}

TEST(FormatConformance, FindsAWrongOffset) {
  ToyFormat toy;
  toy.offset_error = 1;
  EXPECT_FALSE(toy.failures().empty());
}

TEST(FormatConformance, FindsALayoutThatChanges) {
  ToyFormat toy;
  toy.counts_layouts = true;
  EXPECT_TRUE(has(toy.failures(), "two layouts of the same tensors differ")) << text_of(toy.failures());
}

}  // namespace
}  // namespace chassis
