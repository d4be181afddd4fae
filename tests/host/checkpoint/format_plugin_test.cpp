// The answers of a format plugin are checked: those of a broken or hostile one never reach a file.
#include "host/checkpoint/format_plugin.hpp"

#include <sys/stat.h>

#include "fixture.hpp"
#include "scripted_format.hpp"

namespace chassis {
namespace {

using namespace testing;

std::vector<DiskBox> two_boxes() {
  return {{"a", Dtype::f32, {2}, Box::whole({2}), 0}, {"b", Dtype::u8, {3}, Box::whole({3}), 0}};
}

std::string layout_error(const ScriptedFormat::LayoutScript& script) {
  ScriptedFormat format;
  format.layout = script;
  return error_of([&] { format.plugin.layout(two_boxes(), {}, 1, 0); });
}

TEST(FormatPlugin, AcceptsALayoutWithSmallGaps) {
  EXPECT_EQ(layout_error([](const auto&, const auto& s) {
              s.file(&s, str_of("f"), str_of("head"), 35, 0);
              s.place(&s, 0, 0, 8);
              s.place(&s, 1, 0, 32);
              return static_cast<chassis_status_t*>(nullptr);
            }),
            "no error");
}

TEST(FormatPlugin, RefusesInvalidLayouts) {
  struct Case {
    const char* expected;
    ScriptedFormat::LayoutScript script;
  };
  const auto ok = static_cast<chassis_status_t*>(nullptr);
  const std::vector<Case> cases = {
      {"tensor 'b' has no place",
       [=](const auto&, const auto& s) {
         s.file(&s, str_of("f"), str_of(""), 8, 0);
         s.place(&s, 0, 0, 0);
         return ok;
       }},
      {"is placed twice",
       [=](const auto&, const auto& s) {
         s.place(&s, 0, 0, 0);
         return s.place(&s, 0, 0, 0);
       }},
      {"there is no tensor 7", [=](const auto&, const auto& s) { return s.place(&s, 7, 0, 0); }},
      {"placed in file 3 of 1",
       [=](const auto&, const auto& s) {
         s.file(&s, str_of("f"), str_of(""), 8, 0);
         s.place(&s, 0, 0, 0);
         s.place(&s, 1, 3, 0);
         return ok;
       }},
      {"at byte 4 of 'f', expected 8",
       [=](const auto&, const auto& s) {
         s.file(&s, str_of("f"), str_of(""), 11, 0);
         s.place(&s, 0, 0, 0);
         s.place(&s, 1, 0, 4);
         return ok;
       }},
      {"at byte 2 of 'f', expected 4",
       [=](const auto&, const auto& s) {
         s.file(&s, str_of("f"), str_of("head"), 15, 0);
         s.place(&s, 0, 0, 2);
         s.place(&s, 1, 0, 12);
         return ok;
       }},
      {"is placed at byte 8",
       [=](const auto&, const auto& s) {
         s.file(&s, str_of("f"), str_of(""), 9, 0);
         s.place(&s, 0, 0, 0);
         s.place(&s, 1, 0, 8);
         return ok;
       }},
      {"is placed at byte 18446744073709551615",
       [=](const auto&, const auto& s) {
         s.file(&s, str_of("f"), str_of(""), 11, 0);
         s.place(&s, 0, 0, 0);
         s.place(&s, 1, 0, UINT64_MAX);
         return ok;
       }},
      {"should have 12 bytes, its header and tensors have 11",
       [=](const auto&, const auto& s) {
         s.file(&s, str_of("f"), str_of(""), 12, 0);
         s.place(&s, 0, 0, 0);
         s.place(&s, 1, 0, 8);
         return ok;
       }},
      {"'../f' is not a valid path",
       [=](const auto&, const auto& s) {
         s.file(&s, str_of("../f"), str_of(""), 11, 0);
         s.place(&s, 0, 0, 0);
         s.place(&s, 1, 0, 8);
         return ok;
       }},
      {"'/etc/passwd' is not a valid path",
       [=](const auto&, const auto& s) {
         s.text_file(&s, str_of("/etc/passwd"), str_of("x"));
         s.file(&s, str_of("f"), str_of(""), 11, 0);
         s.place(&s, 0, 0, 0);
         s.place(&s, 1, 0, 8);
         return ok;
       }},
      {"two files 'f'",
       [=](const auto&, const auto& s) {
         s.text_file(&s, str_of("f"), str_of("x"));
         s.file(&s, str_of("f"), str_of(""), 11, 0);
         s.place(&s, 0, 0, 0);
         s.place(&s, 1, 0, 8);
         return ok;
       }},
      {"two files 'manifest.json'",
       [=](const auto&, const auto& s) {
         s.text_file(&s, str_of("manifest.json"), str_of("x"));
         s.file(&s, str_of("f"), str_of(""), 11, 0);
         s.place(&s, 0, 0, 0);
         s.place(&s, 1, 0, 8);
         return ok;
       }},
      {"other readers refuse more than 25000000",
       [=](const auto&, const auto& s) {
         const std::string h(25'000'000, ' ');
         s.file(&s, str_of("f"), str_of(h), h.size() + 11, 0);
         s.place(&s, 0, 0, h.size());
         s.place(&s, 1, 0, h.size() + 8);
         return ok;
       }},
      {"no room", [=](const auto&, const auto&) { return make_status(CHASSIS_INVALID_ARGUMENT, "no room"); }},
  };
  for (const Case& c : cases)
    EXPECT_NE(layout_error(c.script).find(c.expected), std::string::npos) << layout_error(c.script);
}

TEST(FormatPlugin, RefusesScansThatExtendPastTheirFiles) {
  const TemporaryDirectory dir;
  write_text(dir / "f", "0123456789");
  const int64_t shape[] = {4}, origin[] = {0}, huge[] = {int64_t{1} << 62}, negative[] = {-1},
                nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  const auto scan_error = [&](chassis_disk_tensor_t tensor, uint32_t file, uint64_t offset) {
    ScriptedFormat format;
    format.scan = [&](const auto&, const auto& s) { return s.tensor(&s, &tensor, file, offset); };
    return error_of([&] {
      SourceDirectory directory(dir.path());
      format.plugin.scan(directory);
    });
  };
  const auto tensor = [&](uint32_t dtype, const int64_t* global, const int64_t* begin, const int64_t* box,
                          uint32_t dims, uint64_t bytes) {
    return chassis_disk_tensor_t{sizeof(chassis_disk_tensor_t), dtype, str_of("t"), global, begin, box, dims, 0, bytes};
  };
  const auto good = tensor(CHASSIS_DTYPE_U8, shape, origin, shape, 1, 4);
  EXPECT_EQ(scan_error(good, 0, 6), "no error");
  EXPECT_NE(scan_error(good, 0, 7).find("extends past the end of 'f'"), std::string::npos);
  EXPECT_NE(scan_error(good, 0, UINT64_MAX).find("extends past the end"), std::string::npos);
  EXPECT_NE(scan_error(good, 1, 0).find("lies in file 1 of 1"), std::string::npos);
  EXPECT_NE(scan_error(tensor(99, shape, origin, shape, 1, 4), 0, 0).find("unknown dtype 99"), std::string::npos);
  EXPECT_NE(scan_error(tensor(CHASSIS_DTYPE_U8, shape, shape, shape, 1, 4), 0, 0).find("does not lie inside"),
            std::string::npos);
  EXPECT_NE(scan_error(tensor(CHASSIS_DTYPE_F64, huge, origin, huge, 1, 0), 0, 0), "no error");
  EXPECT_NE(scan_error(tensor(CHASSIS_DTYPE_U8, negative, origin, negative, 1, 0), 0, 0), "no error");
  EXPECT_NE(scan_error(tensor(CHASSIS_DTYPE_U8, nine, nine, nine, 9, 1), 0, 0).find("at most 8 are supported"),
            std::string::npos);
  EXPECT_NE(scan_error(tensor(CHASSIS_DTYPE_U8, shape, origin, shape, 1, 5), 0, 0)
                .find("has 5 bytes, its box of [4] takes 4"),
            std::string::npos);
}

TEST(FormatPlugin, NamesWhatIsInThePlaceOfItsFile) {
  const TemporaryDirectory dir;
  fs::create_directories(dir / "folder/model.safetensors");
  fs::create_directories(dir / "pipe/other");
  fs::create_directories(dir / "folder/model");
  ASSERT_EQ(::mkfifo((dir / "pipe/model.safetensors").c_str(), 0600), 0);
  const auto refusal = [&](const std::string& path) {
    return error_of([&] {
      SourceDirectory directory(path);
      huggingface().scan(directory);
    });
  };
  for (const auto& [name, kind] : {std::pair("folder", "directory"), std::pair("pipe", "FIFO")}) {
    const std::string text = refusal(dir / name), path = dir / name;
    EXPECT_NE(text.find("is not of format safetensors: no model.safetensors"), std::string::npos) << text;
    EXPECT_NE(text.find("; '" + path + "/model.safetensors' is a " + kind + ", expected a file"), std::string::npos)
        << text;
  }
}

TEST(FormatPlugin, NamesTheLinksThatItDidNotFollow) {
  const TemporaryDirectory dir;
  fs::create_symlink("/nowhere", dir / "model.safetensors");
  const std::string text = error_of([&] {
    SourceDirectory directory(dir.path());
    huggingface().scan(directory);
  });
  EXPECT_NE(text.find("is not of format safetensors"), std::string::npos) << text;
  EXPECT_NE(text.find("the link 'model.safetensors' was not followed"), std::string::npos) << text;
}

}  // namespace
}  // namespace chassis
