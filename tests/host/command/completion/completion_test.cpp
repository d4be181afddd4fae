// `chassis completion` in the shells themselves. Tests of a shell that is not installed are skipped.
#include <gtest/gtest.h>

#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

using Words = std::vector<std::string>;

// Calls the function as bash does, for a line already split into words: `offers chassis ckpt me`.
constexpr const char* kBash = R"(source "$1/chassis.bash"
cd "$1/files"
offers() {
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _chassis
  printf '%s|' "${COMPREPLY[@]}"
}
)";

// Types each line into a shell of its own, presses Tab, and prints the line that results.
constexpr const char* kZsh = R"(cd $1/files
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PS1= PS2= RPS1=; stty -echo; unsetopt list_beep auto_list; autoload -Uz compinit; compinit -D -u"
zpty -w z "source $1/chassis.zsh"
zpty -w z 'show() { zle complete-word; print -r -- "<got:$BUFFER>"; BUFFER=; zle .accept-line }; zle -N show'
zpty -w z 'bindkey "^X" show; print read''y'
while zpty -r z line; do [[ $line == *ready* ]] && break; done
for text in "${@[2,-1]}"; do
  zpty -w -n z "$text"$'\C-x'
  while zpty -r z line; do
    [[ $line == *'<got:'* ]] && { print -r -- "${${line#*<got:}%%>*}|"; break }
  done
done
zpty -d z
)";

class CompletionVerb : public testing::Test {
 protected:
  CompletionVerb() {
    std::filesystem::create_directories(scratch_ / "files/sub");
    for (const char* name : {"a.toml", "x y.toml", "rows.txt"}) test::write_text(scratch_ / "files/" + name, "");
  }
  std::string script(const std::string& shell) {
    const test::Outcome made =
        test::run_process({CHASSIS_TEST_BINARY_DIR "/bin/chassis", "completion", shell}, scratch_.path());
    EXPECT_EQ(made.exit_code, 0) << made.output;
    test::write_text(scratch_ / "chassis." + shell, made.output);
    return made.output;
  }
  std::string shell(Words words) {
    const test::Outcome outcome = test::run_process(words, scratch_.path(), {{"XDG_CONFIG_HOME", scratch_.path()}});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  }
  std::string bash(const std::string& line) {
    return shell({"/bin/bash", "--norc", "-c", kBash + ("offers " + line), "bash", scratch_.path()});
  }
  static std::string installed(const std::string& name) {
    for (const char* folder : {"/usr/bin/", "/bin/", "/usr/local/bin/"})
      if (std::filesystem::exists(folder + name)) return folder + name;
    return "";
  }

  test::ScratchDirectory scratch_;
};

TEST_F(CompletionVerb, BashOffersCommandsOptionsAndFiles) {
  script("bash");
  EXPECT_EQ(bash("chassis tr"), "train|");
  EXPECT_EQ(bash("chassis ckpt me"), "merge|");
  EXPECT_EQ(bash("chassis --plugin-path sub tra"), "train|");
  EXPECT_EQ(bash("chassis help pl"), "plan|plugins|");
  EXPECT_EQ(bash("chassis plan a.toml --js"), "--json|");
  EXPECT_EQ(bash("chassis plan a.toml --device ''"), "cpu|cuda|");
  EXPECT_EQ(bash("chassis plan a.toml --device = cu"), "cuda|");
  EXPECT_EQ(bash("chassis train ''"), "sub|a.toml|x y.toml|");
  EXPECT_EQ(bash("chassis train --plugin-path ''"), "sub|");
  EXPECT_EQ(bash("chassis completion ''"), "bash|zsh|fish|");
  EXPECT_EQ(bash("chassis plugins info lio"), "lion|");
  EXPECT_EQ(bash("chassis plugins check-in"), "|") << "a hidden command";
}

TEST_F(CompletionVerb, BashOffersKeysAndTheirValues) {
  script("bash");
  EXPECT_EQ(bash("chassis train a.toml opti"), "optimizer.|");
  EXPECT_EQ(bash("chassis train a.toml train.seq"), "train.seq_len=|");
  EXPECT_HAS(bash("chassis train a.toml optimizer."), "optimizer.beta1=|") << "an option of a plugin";
  EXPECT_EQ(bash("chassis train a.toml optimizer.plugin = li"), "lion|");
  EXPECT_EQ(bash("chassis train a.toml run.device = cpu run.dev"), "run.device=|");
  EXPECT_EQ(bash("chassis train a.toml data.train.1.for"), "data.train.1.format=|");
  EXPECT_EQ(bash("chassis train a.toml data.train.1.format = al"), "alpaca|");
  EXPECT_EQ(bash("chassis train a.toml data.train.0.path = ro"), "rows.txt|");
  EXPECT_EQ(bash("chassis train a.toml log.every"), "log.every_steps=|");
  EXPECT_EQ(bash("chassis train a.toml nothing"), "|");
}

TEST_F(CompletionVerb, Zsh) {
  script("zsh");
  const std::string zsh = installed("zsh");
  if (zsh.empty()) GTEST_SKIP() << "zsh is not installed";
  shell({zsh, "-n", scratch_ / "chassis.zsh"});
  const std::string shown =
      shell({zsh, "-f", "-c", kZsh, "zsh", scratch_.path(), "chassis tr", "chassis ckpt me", "chassis plan a.toml --js",
             "chassis plan a.toml --device=cu", "chassis train x", "chassis train --plugin-path s",
             "chassis train a.toml optimizer.plugin=li", "chassis train a.toml data.train.1.fo"});
  EXPECT_EQ(shown,
            "chassis train |\nchassis ckpt merge |\nchassis plan a.toml --json |\nchassis plan a.toml --device=cuda |\n"
            "chassis train x\\ y.toml |\nchassis train --plugin-path sub/|\n"
            "chassis train a.toml optimizer.plugin=lion |\nchassis train a.toml data.train.1.format=|\n");
}

TEST_F(CompletionVerb, Fish) {
  script("fish");
  const std::string fish = installed("fish");
  if (fish.empty()) GTEST_SKIP() << "fish is not installed";
  shell({fish, "-n", scratch_ / "chassis.fish"});
  const auto offers = [&](const std::string& line) {
    return shell({fish, "--no-config", "-c",
                  "cd " + scratch_.path() + "/files; source ../chassis.fish; complete -C '" + line + "'"});
  };
  EXPECT_EQ(offers("chassis tr"), "train\ttrain or fine-tune a model\n");
  EXPECT_HAS(offers("chassis ckpt me"), "merge\t");
  EXPECT_EQ(offers("chassis train "), "a.toml\nsub/\nx y.toml\n");
  EXPECT_HAS(offers("chassis plan a.toml --device cu"), "cuda\t");
  EXPECT_EQ(offers("chassis plan a.toml --js"), "--json\tprint JSON\n");
  EXPECT_EQ(offers("chassis train a.toml optimizer.plugin=li"), "optimizer.plugin=lion\n");
  EXPECT_EQ(offers("chassis train a.toml data.train.1.fo"), "data.train.1.format=\n");
  EXPECT_EQ(offers("chassis train a.toml data.train.1.path=ro"), "data.train.1.path=rows.txt\n");
}

TEST_F(CompletionVerb, NamesTheShellsThatItKnows) {
  const test::Outcome refused =
      test::run_process({CHASSIS_TEST_BINARY_DIR "/bin/chassis", "completion", "tcsh"}, scratch_.path());
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_HAS(refused.output, "tcsh not in {bash,zsh,fish}");
}

}  // namespace
}  // namespace chassis
