// The tokenizer that the program finds by the files of a directory; model directories in the Hugging Face cache.
#include <filesystem>

#include "tests/support/program_copy.hpp"
#include "tests/support/program_run.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;
using test::Outcome;

// hub/ is a model of 300 ids with the words of a tokenizer; run.toml names the directory, and no tokenizer.
class ModelTokenizer : public test::ProgramRun {
 protected:
  ModelTokenizer() {
    toml("vocab_size = 259", "vocab_size = 300");
    EXPECT_EQ(train({"run.max_steps=1", "run.output_dir=first"}).exit_code, 0);
    fs::rename(scratch_ / "first/final", scratch_ / "hub");
    fs::remove(scratch_ / "hub/manifest.json");
    test::write_text(scratch_ / "hub/words.txt", "line\ncorpus\n");
    test::write_text(scratch_ / "hub/generation_config.json", "{}");
    const std::string text = test::text_of_file(scratch_ / "run.toml");
    const size_t model = text.find("[model]"), data = text.find("[[data.train]]");
    toml(text.substr(model, data - model), "[model]\npath = \"hub\"\n");
    copy_.add("words", CHASSIS_TEST_STUB_DIR);
  }
  void toml(const std::string& from, const std::string& to) {
    std::string text = test::text_of_file(scratch_ / "run.toml");
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    test::write_text(scratch_ / "run.toml", text);
  }
  std::string run(Words words, int exit_code = 0, const std::string& verb = "train",
                  const std::vector<std::pair<std::string, std::string>>& environment = {}) {
    words.insert(words.begin(), {copy_.path(), verb, "run.toml"});
    const Outcome outcome = test::run_process(words, scratch_.path(), environment);
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output;
    return outcome.output;
  }
  bool exists(const std::string& path) const { return fs::exists(scratch_ / path); }

  test::ProgramCopy copy_{scratch_ / "own", {"llama", "bytes", "adamw", "safetensors", "naive", "reference"}};
};

TEST_F(ModelTokenizer, IsFoundByItsFilesAndExported) {
  EXPECT_HAS(run({"run.max_steps=2", "checkpoint.every_steps=1"}),
             "tokenizer 'words' of hub: 263 ids, with a chat template\n");
  for (const char* file : {"out/final/words.txt", "out/checkpoints/step-000001/words.txt"})
    EXPECT_TRUE(exists(file)) << file;
  EXPECT_TRUE(exists("out/final/generation_config.json"));
  // The export is again a model directory with a tokenizer.
  EXPECT_HAS(run({"model.path=out/final", "--prompt", "line", "generate.max_new_tokens=2"}, 0, "generate"),
             "tokenizer 'words' of out/final: 263 ids");
}

TEST_F(ModelTokenizer, APluginOfAnotherFolderIsUsedOnlyIfItIsNamed) {
  fs::remove(copy_.plugins_folder() + "/words.so");
  const Words path = {"--plugin-path", CHASSIS_TEST_STUB_DIR};
  const std::string foreign = run(path, 2);
  EXPECT_HAS(foreign,
             "run.toml:6:8: model.path = \"hub\" has words.txt, which plugin 'words' opens; it lies outside of the "
             "program's own folder, so it is used only if it is named");
  EXPECT_HAS(foreign, "hint: set tokenizer.plugin = \"words\"");
  run({"tokenizer.plugin=words", "--plugin-path", CHASSIS_TEST_STUB_DIR, "run.max_steps=1"});
  fs::remove(scratch_ / "hub/words.txt");
  EXPECT_HAS(run(path, 2),
             "run.toml:6:8: model.path = \"hub\" has no tokenizer files, and [tokenizer] names no plugin");
  test::write_text(scratch_ / "hub/tokenizer.json", "{}");
  const std::string refusal = run(path, 2);
  EXPECT_HAS(refusal, "model.path = \"hub\" has a tokenizer (tokenizer.json), but no plugin that opens such files");
  EXPECT_HAS(refusal, "hint: `chassis plugins list` shows the tokenizers");
}

TEST_F(ModelTokenizer, AnotherKindOfFileIsRefusedInTheWordsOfThePlugin) {
  fs::remove(scratch_ / "hub/words.txt");
  test::write_text(scratch_ / "hub/tokenizer.model", "x");
  EXPECT_HAS(run({}, 2), "run.toml:6:8: plugin 'words' 0.1.0: there is no hub/words.txt");
}

TEST_F(ModelTokenizer, OnlyATextThatNeedsAnIdAboveTheModelsVocabularyIsRefused) {
  std::string words;
  for (int i = 0; i < 50; ++i) words += "word" + std::string(static_cast<size_t>(i), 'x') + "\n";
  test::write_text(scratch_ / "hub/words.txt", words);
  const std::string said = run({"run.max_steps=1"});
  EXPECT_HAS(said, "tokenizer 'words' has 311 ids, the model's vocabulary has 300");
  EXPECT_HAS(said, "(id 300)");
  test::write_text(scratch_ / "corpus.txt", "a word" + std::string(45, 'x') + " more\n");
  const std::string refusal = run({"run.output_dir=again"}, 2);
  EXPECT_HAS(refusal, "corpus.txt:1: the text has the token word" + std::string(45, 'x') + " (id 30");
  EXPECT_HAS(refusal, "and the model's vocabulary has 300 ids");
}

TEST_F(ModelTokenizer, IsNotOpenedForDataThatIsTokensAlready) {
  std::string rows;
  for (int i = 0; i < 40; ++i) rows += "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8]}\n";
  test::write_text(scratch_ / "rows.jsonl", rows);
  fs::remove(scratch_ / "hub/words.txt");
  test::write_text(scratch_ / "hub/tokenizer.json", "{}");
  toml("\"corpus.txt\"", "\"rows.jsonl\"\nformat = \"tokens\"");
  EXPECT_EQ(run({"run.max_steps=1"}).find("tokenizer 'words'"), std::string::npos);
  EXPECT_TRUE(exists("out/final/tokenizer.json"));
}

TEST_F(ModelTokenizer, AnotherDirectoryMustHaveTheSameWords) {
  fs::create_directories(scratch_ / "other");
  const Words other = {"tokenizer.path=other", "run.max_steps=1"};
  test::write_text(scratch_ / "other/words.txt", "line\ncorpus\nmore\n");
  run(other);
  EXPECT_EQ(test::text_of_file(scratch_ / "out/final/words.txt"), "line\ncorpus\nmore\n");

  test::write_text(scratch_ / "other/words.txt", "small\ncorpus\n");
  const std::string refusal = run({"tokenizer.path=other", "run.output_dir=again"}, 2);
  EXPECT_HAS(refusal,
             "the tokenizer of other is not the one that hub contains: id 261 is 'small', and 'line' in that of the "
             "model: its ids stand for other words");
  EXPECT_HAS(refusal, "tokenizer.force = true uses this one anyway");
  EXPECT_HAS(run({"tokenizer.path=other", "tokenizer.force=true", "run.output_dir=again", "run.max_steps=1"}),
             "warning: the tokenizer of other is not the one that hub contains");
  EXPECT_EQ(test::text_of_file(scratch_ / "again/final/words.txt"), "small\ncorpus\n");
}

TEST_F(ModelTokenizer, ANewModelIsTrainedWithTheTokenizerOfADirectory) {
  toml("path = \"hub\"",
       "plugin = \"llama\"\nconfig = { hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2, "
       "num_key_value_heads = 1, intermediate_size = 32, vocab_size = 263 }\n[tokenizer]\npath = \"tok\"");
  fs::create_directories(scratch_ / "tok");
  test::write_text(scratch_ / "tok/words.txt", "line\ncorpus\n");
  run({"run.max_steps=1"});
  EXPECT_TRUE(exists("out/final/words.txt"));
  test::write_text(scratch_ / "tok/words.txt", "line\ncorpus\nmore\n");
  const std::string said = run({"run.max_steps=1", "run.output_dir=again"});
  EXPECT_HAS(said, "tokenizer 'words' has 264 ids, the model's vocabulary has 263");
  EXPECT_HAS(said, "the first is more (id 263); vocab_size of a new model may be larger");
}

TEST_F(ModelTokenizer, ItsOptionsAreCheckedThoughItIsNotNamed) {
  EXPECT_HAS(run({"tokenizer.lowercase=true"}, 2), "unknown key 'tokenizer.lowercase'");
}

// As huggingface_hub lays it out: the files of a snapshot are links.
TEST_F(ModelTokenizer, AModelOfTheHuggingFaceCacheIsTrained) {
  const std::string model = scratch_ / "cache/models--org--tiny";
  for (const char* folder : {"/blobs", "/refs", "/snapshots/0a1b"}) fs::create_directories(model + folder);
  int blob = 0;
  for (const auto& entry : fs::directory_iterator(scratch_ / "hub")) {
    const std::string name = std::to_string(blob++);
    fs::copy(entry.path(), model + "/blobs/" + name);
    fs::create_symlink("../../blobs/" + name, model + "/snapshots/0a1b/" + entry.path().filename().string());
  }
  test::write_text(model + "/refs/main", "0a1b");
  const std::vector<std::pair<std::string, std::string>> cache = {{"HF_HUB_CACHE", scratch_ / "cache"}};
  EXPECT_HAS(run({"model.path=hub:org/tiny", "run.max_steps=1"}, 0, "train", cache), "tokenizer 'words' of ");
  EXPECT_FALSE(fs::is_symlink(scratch_ / "out/final/words.txt"));
  EXPECT_HAS(run({"model.path=hub:org/tiny@v2"}, 2, "train", cache),
             "has org/tiny, but not its revision 'v2'; get it with: hf download org/tiny --revision v2");
}

}  // namespace
}  // namespace chassis
