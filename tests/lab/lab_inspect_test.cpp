// Runs the program itself, as a student does: what it prints and how it ends.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/parallel.h"
#include "common/simd/primitives.h"
#include "tests/loader/temp_dir.h"
#include "tests/loader/tiny_model.h"
#include "tests/support/program.h"

namespace kvlab {
namespace {

class LabInspectTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(Dir());
    WriteTinyModel(Dir());
  }
  std::filesystem::path Dir() { return dir_ / "model"; }

  /// Runs `lab_inspect arguments`, as words of a shell.
  ProgramRun Inspect(const std::string& arguments) {
    return RunCommand(StrCat(Quoted(KVLAB_LAB_INSPECT), " ", arguments),
                      dir_.path());
  }
  std::string Model() { return Quoted(Dir()); }
  /// The file's path, quoted, after `text` was written to it.
  std::string FileWith(std::string_view text) {
    WriteFile(dir_ / "input", text);
    return Quoted(dir_ / "input");
  }

  void ExpectFails(const ProgramRun& run, int exit_code,
                   const std::string& part) {
    EXPECT_TRUE(FailsWithOneLine(run, exit_code, "lab_inspect", part));
  }

  TempDir dir_;
};

TEST_F(LabInspectTest, ShowsAModel) {
  const ProgramRun run = Inspect("model " + Model());
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.err, "");
  // 300 x 6 + 2 x (6 + 192 + 96 + 96 + 8 + 8 + 192 + 6 + 3 x 60) + 6
  EXPECT_TRUE(Has(run.out, "Parameters: 3,374\n"));
  EXPECT_TRUE(Has(run.out, "qwen3"));
  EXPECT_TRUE(Has(run.out, "head_dim               8"));
  // 2 x 2 layers x 2 KV heads x 8
  EXPECT_TRUE(Has(run.out, "= 64 numbers, 256 B as f32"));
  EXPECT_TRUE(Has(run.out, "F32     [32, 6]"));
  EXPECT_TRUE(Has(run.out, "the embedding once more (tied)"));
  EXPECT_TRUE(Has(run.out, "in 1 file; 0 other tensors"));
  EXPECT_TRUE(Has(run.out, "260 tokens"));
  EXPECT_TRUE(Has(run.out, "259 \"<|im_end|>\", 0 \"\\x00\""));
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) {
    if (Has(line, Dir().string())) continue;  // as long as the path
    EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST_F(LabInspectTest, ShowsAModelWithoutATokenizer) {
  std::filesystem::remove(Dir() / "tokenizer.json");
  std::filesystem::remove(Dir() / "tokenizer_config.json");
  const ProgramRun run = Inspect("model " + Model());
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_TRUE(Has(run.out, "none usable: "));
  EXPECT_TRUE(Has(run.out, "tokenizer.json: no such file"));
}

TEST_F(LabInspectTest, ChecksAllBeforeItPrints) {
  nlohmann::json tokenizer =
      nlohmann::json::parse(ReadFile(Dir() / "tokenizer.json"));
  tokenizer["added_tokens"].back()["id"] = 280;  // 259 is a gap then
  WriteFile(Dir() / "tokenizer.json", tokenizer.dump());
  ExpectFails(Inspect("model " + Model()), 1, "259");
}

TEST_F(LabInspectTest, CountsTensorsThatAreNotUsed) {
  TensorSet set = AllTensors();
  set.Add("visual.weight", {2});
  WriteSafetensors(Dir() / "model.safetensors", {}, set.All());
  EXPECT_TRUE(Has(Inspect("model " + Model()).out, "1 other tensor there"));
}

TEST_F(LabInspectTest, ShowsAFileHarmless) {
  const std::uint8_t bytes[4] = {1, 2, 3, 4};
  const std::vector<TensorToWrite> tensors = {
      {"a\x1B[31m", Dtype::kU8, {2, 2}, std::as_bytes(std::span(bytes))}};
  WriteSafetensors(dir_ / "f", {{"note", "two\nlines"}}, tensors);
  const ProgramRun run = Inspect("tensors " + Quoted(dir_ / "f"));
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_TRUE(Has(run.out, "U8     [2, 2]  a\\x1B[31m\n"));
  EXPECT_TRUE(Has(run.out, "note  two\\x0Alines\n"));
  EXPECT_TRUE(Has(run.out, "the data starts at byte"));
}

TEST_F(LabInspectTest, ShowsTokens) {
  const std::string file = FileWith("a fox\n");
  const ProgramRun table =
      Inspect("tokens " + Model() + " --text-file " + file);
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_TRUE(Has(table.out, "4 tokens for 6 bytes"));
  EXPECT_TRUE(Has(table.out, "257  \u0120fo    \" fo\"\n"));
  EXPECT_TRUE(Has(table.out, "\"\\x0A\"\n"));
  const auto expected = nlohmann::json::parse(
      R"({"ids":[97,257,120,10],"pieces":["a","\u0120fo","x","\u010a"]})");
  const ProgramRun json =
      Inspect("tokens --json --text-file " + file + " " + Model());
  EXPECT_EQ(nlohmann::json::parse(json.out), expected);
  const ProgramRun piped =
      Inspect("tokens --json --text-file - " + Model() + " <" + file);
  EXPECT_EQ(piped.out, json.out);
  const ProgramRun empty =
      Inspect("tokens --json " + Model() + " --text-file " + FileWith(""));
  EXPECT_EQ(empty.out, "{\"ids\":[],\"pieces\":[]}\n");
}

TEST_F(LabInspectTest, ShowsTokensOfATextOnTheCommandLine) {
  EXPECT_EQ(Inspect("tokens --json --text 'a fox' " + Model()).out,
            "{\"ids\":[97,257,120],\"pieces\":[\"a\",\"\u0120fo\",\"x\"]}\n");
  EXPECT_EQ(Inspect("tokens --json --text '' " + Model()).out,
            "{\"ids\":[],\"pieces\":[]}\n");
  ExpectFails(Inspect("tokens --text a --text-file b " + Model()), 2,
              " excludes --text");
}

TEST_F(LabInspectTest, DecodesIds) {
  const ProgramRun run = Inspect("decode " + Model() + " --ids 97,257,120,259");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out, "a fox<|im_end|>\n");
  for (const char* ids : {"1,2,x", "260", "-1", "1,,2", "1,", "''", "1.5",
                          "99999999999999999999", "'1 2'"}) {
    ExpectFails(Inspect("decode " + Model() + " --ids " + ids), 2,
                "--ids: expected ids of 0 to 259");
  }
}

TEST_F(LabInspectTest, RendersAConversation) {
  const std::string file = FileWith(R"([{"role":"user","content":"a fox"}])");
  const std::string text =
      "<|im_start|>user\na fox<|im_end|>\n<|im_start|>assistant\n";
  const ProgramRun run = Inspect("chat " + Model() + " --messages " + file);
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_TRUE(run.out.starts_with(text + "\n")) << run.out;
  const ProgramRun json = Inspect("chat " + Model() + " --messages " + file +
                                  " --json --no-thinking");
  const auto object = nlohmann::json::parse(json.out);
  EXPECT_EQ(object.at("text"), text);
  EXPECT_EQ(object.at("ids").size(), 1u + 5 + 3 + 2 + 1 + 10);
  EXPECT_EQ(object.at("ids").at(0), kImStart);
  EXPECT_EQ(object.size(), 2u);
  const std::string wrapped =
      FileWith(R"({"messages":[{"role":"user","content":"a fox"}]})");
  EXPECT_EQ(Inspect("chat --json " + Model() + " --messages " + wrapped).out,
            json.out);
}

TEST_F(LabInspectTest, RefusesWhatIsNoConversation) {
  const auto run = [&](std::string_view messages) {
    return Inspect("chat " + Model() + " --messages " + FileWith(messages));
  };
  ExpectFails(run("x"), 1, "not valid JSON");
  ExpectFails(run("{}"), 1, "\"messages\"");
  ExpectFails(run("7"), 1,
              "expected a list of messages [{\"role\": ..., \"content\": ...}, "
              "...], found 7");
  ExpectFails(run("[7]"), 1, "expected a JSON object");
  ExpectFails(run(R"([{"role":"user"}])"), 1, "message 1: content");
  ExpectFails(run(R"([{"role":"user","content":null}])"), 1,
              "message 1: content: expected a string, found null");
  ExpectFails(run(R"([{"role":"user","content":"a","tool_calls":[]}])"), 1,
              "message 1: tool_calls");
  ExpectFails(run(R"([{"role":"wizard","content":"a"}])"), 1, "wizard");
}

TEST_F(LabInspectTest, ShowsWhatTheCpuCanRun) {
  const ProgramRun run = Inspect("cpu --json");
  EXPECT_EQ(run.exit_code, 0);
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_TRUE(json.at("cpu").is_null() || json["cpu"] != "");
  EXPECT_EQ(json.at("physical_cores"), PhysicalCores());
  EXPECT_EQ(json.at("default_isa"), IsaName(BestIsa()));
  const auto& isas = json.at("isas");
  ASSERT_EQ(isas.size(), KnownIsas().size());
  std::size_t built = 0;
  for (std::size_t i = 0; i < isas.size(); ++i) {
    const Isa isa = KnownIsas()[i];
    EXPECT_EQ(isas[i].at("name"), IsaName(isa));
    EXPECT_EQ(isas[i].at("runs"), CpuHas(isa)) << IsaName(isa);
    EXPECT_TRUE(!CpuHas(isa) || isas[i].at("built")) << IsaName(isa);
    if (isas[i]["built"]) ++built;
  }
  EXPECT_EQ(built, BuiltIsas().size());

  const ProgramRun table = Inspect("cpu");
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_EQ(table.err, "");
  EXPECT_TRUE(Has(table.out, StrCat("Physical cores: ", PhysicalCores())));
  if (!json["cpu"].is_null()) {
    EXPECT_TRUE(Has(table.out, "CPU: " + json["cpu"].get<std::string>()));
  }
  int defaults = 0, rows = 0;
  std::istringstream lines(table.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 86u) << line;  // a CPU's name has up to 80
    if (line.ends_with("the default")) {
      ++defaults;
      EXPECT_TRUE(line.starts_with(StrCat("  ", IsaName(BestIsa()), " ")));
    }
    if (line.starts_with("  ")) ++rows;
  }
  EXPECT_EQ(defaults, 1);
  EXPECT_EQ(rows, 1 + static_cast<int>(KnownIsas().size()));
}

TEST_F(LabInspectTest, EndsWithOneLineAndTheRightCode) {
  ExpectFails(Inspect(""), 2, "see lab_inspect --help");
  ExpectFails(Inspect("modell"), 2, "modell");
  ExpectFails(Inspect("model " + Model() + " bogus"), 2, "bogus");
  ExpectFails(Inspect("cpu bogus"), 2, "bogus");
  ExpectFails(Inspect("tensors ''"), 1, "\"\": no such file");
  ExpectFails(Inspect("model ''"), 1, "\"\": expected a model directory");
  ExpectFails(Inspect("model --bogus"), 2, "--bogus");
  ExpectFails(Inspect("tokens " + Model()), 2, "--text-file");
  ExpectFails(Inspect("tensors"), 2, "FILE");
  ExpectFails(Inspect("model " + Quoted(dir_ / "typo")), 1,
              "typo: expected a model directory, found nothing");
  ExpectFails(Inspect("tensors " + Quoted(Dir())), 1, "found a directory");
  ExpectFails(Inspect("tensors " + Quoted(Dir() / "config.json")), 1,
              "config.json: header length");
  ExpectFails(
      Inspect("tokens " + Model() + " --text-file " + Quoted(dir_ / "absent")),
      1, "absent: no such file");
  ExpectFails(Inspect("tokens " + Model() + " --text-file ''"), 1,
              "\"\": no such file");
  ExpectFails(Inspect("tokens " + Model() + " --text-file " + Model()), 1,
              "found a directory");
  ExpectFails(
      Inspect("tokens " + Model() + " --text-file " + FileWith("a\xFF")), 1,
      "UTF-8");
}

TEST_F(LabInspectTest, TellsHelpAndVersionEverywhere) {
  for (const char* command :
       {"", "model", "tensors", "tokens", "decode", "chat", "cpu"}) {
    const ProgramRun help = Inspect(std::string(command) + " --help");
    EXPECT_EQ(help.exit_code, 0) << command;
    EXPECT_TRUE(Has(help.out, "Usage")) << command;
    EXPECT_EQ(help.err, "");
    const ProgramRun version = Inspect(std::string(command) + " --version");
    EXPECT_EQ(version.exit_code, 0) << command;
    EXPECT_TRUE(version.out.starts_with("lab_inspect ")) << version.out;
    for (const char* part : {"commit", "compiler", "flags", "-ffp-contract"}) {
      EXPECT_TRUE(Has(version.out, part)) << command;
    }
  }
}

TEST_F(LabInspectTest, KeepsQuietWhenItsReaderHasGone) {
  // More output than a pipe holds (64 KiB), so that writing must fail.
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "abc ";
  const ProgramRun run = Inspect("tokens " + Model() + " --text-file " +
                                 FileWith(text) + " | head -n 1");
  EXPECT_EQ(run.err, "");
}

TEST_F(LabInspectTest, SaysWhenItsOutputIsLost) {
  if (!std::filesystem::exists("/dev/full")) return;  // Linux alone has it
  ExpectFails(Inspect("model " + Model() + " >/dev/full"), 1,
              "standard output cannot be written");
}

}  // namespace
}  // namespace kvlab
