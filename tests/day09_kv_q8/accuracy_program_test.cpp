/// day09_accuracy as a student runs it: short runs.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "tests/loader/temp_dir.h"
#include "tests/require.h"
#include "tests/support/program.h"

namespace kvlab {
namespace {

class AccuracyProgram : public testing::Test {
 protected:
  /// A run that takes little time.
  ProgramRun Run(const std::string& arguments,
                 const std::string& environment = "") {
    return Exactly(
        "--context 64 --tokens 64 --draws 1 --positions 2 " + arguments,
        environment);
  }
  ProgramRun Exactly(const std::string& arguments,
                     const std::string& environment = "") {
    return RunCommand(
        StrCat(environment, " ", Quoted(KVLAB_ACCURACY), " ", arguments),
        dir_.path());
  }
  std::string File(const std::string& name) {
    return Quoted((dir_ / name).string());
  }
  bool Exists(const std::string& name) {
    return std::filesystem::exists(dir_ / name);
  }
  TempDir dir_;
};

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) {
    parts.push_back(part);
  }
  if (text.ends_with(at)) parts.push_back("");
  return parts;
}

TEST_F(AccuracyProgram, ReportsTheSameAsTextJsonAndCsv) {
  const ProgramRun text = Run("--csv " + File("a.csv"));
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.err, "");
  for (const char* part :
       {"outlier 50", "zero all", "layer 2", "q8_single_pass",
        " scores are beyond their bound.\n", "prefill", "decode"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part;
  }
  EXPECT_NE(text.out.find("\n0 of "), std::string::npos);
  EXPECT_EQ(text.out.find("nan"), std::string::npos);
  EXPECT_EQ(text.out.find("inf"), std::string::npos);

  const ProgramRun run = Run("--json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::ordered_json::parse(run.out);
  EXPECT_EQ(json["program"], "day09_accuracy");
  EXPECT_EQ(json["tokens"]["prompt"], 64);
  EXPECT_EQ(json["bound"]["violations"], 0);
  EXPECT_GT(json["bound"]["worst_error_over_bound"], 0.1);
  EXPECT_LT(json["bound"]["worst_error_over_bound"], 1);
  const auto& rows = json["results"];

  // 8 inputs, 3 layers, 3 * 4 heads, in 2 forms of 4 arms; 3 layers as run; the
  // logits of prefill and decode.
  const std::string csv = ReadFile(dir_ / "a.csv");
  EXPECT_TRUE(csv.ends_with('\n'));
  const std::vector<std::string> lines =
      Split(csv.substr(0, csv.size() - 1), '\n');
  ASSERT_EQ(lines.size(), 1u + (8 + 3 + 12) * 8 + 3 + 2);
  ASSERT_EQ(rows.size(), lines.size() - 1);
  const std::vector<std::string> keys = Split(lines[0], ',');
  std::int64_t scores = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::vector<std::string> fields = Split(lines[i + 1], ',');
    ASSERT_EQ(fields.size(), keys.size()) << lines[i + 1];
    for (std::size_t j = 0; j < keys.size(); ++j) {
      const auto& value = rows[i].at(keys[j]);
      EXPECT_EQ(fields[j], value.is_null()     ? ""
                           : value.is_string() ? value.get<std::string>()
                                               : value.dump());
    }
    if (rows[i]["head"].is_null() && rows[i]["scores"].is_number()) {
      scores += rows[i]["scores"].get<std::int64_t>();
    }
  }
  EXPECT_EQ(json["bound"]["scores"], scores);

  // The positions: 2 of the prompt and the answer's are decoded, the others
  // prefilled; the model's queries are those of the decoded ones.
  const auto answer = json["tokens"]["generated"].get<int>();
  const auto& prefill = rows[rows.size() - 2];
  const auto& decode = rows[rows.size() - 1];
  EXPECT_EQ(prefill["input"], "prefill");
  EXPECT_EQ(prefill["positions"], 62);
  EXPECT_EQ(decode["positions"], 2 + answer);
  EXPECT_LE(decode["same_top"], 2 + answer);
  EXPECT_GT(prefill["mean_kl"], 0);
  EXPECT_GT(decode["mean_kl"], 0);
  EXPECT_LT(prefill["largest_kl"], 0.5);
  const auto& layer = rows[8 * 8];
  EXPECT_EQ(layer["source"], "model");
  EXPECT_EQ(layer["queries"], (2 + answer) * 4);
  // q8 costs the model about what it costs Gaussian numbers.
  EXPECT_GT(layer["relative_l2"], 0.002);
  EXPECT_LT(layer["relative_l2"], 0.03);
  // The first layer as run has no earlier errors: it is the reference's, apart
  // from rounding in float.
  const auto& as_run = rows[rows.size() - 5];
  EXPECT_EQ(as_run["source"], "as run");
  EXPECT_NEAR(as_run["relative_l2"].get<double>(),
              layer["relative_l2"].get<double>(), 2e-5);
}

TEST_F(AccuracyProgram, SameBitsForThreadsAndInstructionSets) {
  ASSERT_EQ(Run("--threads 1 --isa scalar --csv " + File("a")).exit_code, 0);
  ASSERT_EQ(Run("--threads 3 --csv " + File("b")).exit_code, 0);
  EXPECT_EQ(ReadFile(dir_ / "a"), ReadFile(dir_ / "b"));
  ASSERT_EQ(Run("--seed 2 --csv " + File("b")).exit_code, 0);
  EXPECT_NE(ReadFile(dir_ / "a"), ReadFile(dir_ / "b"));
}

TEST_F(AccuracyProgram, TakesAPromptOfOnesOwn) {
  const ProgramRun run = Exactly(
      "--tokens 8 --draws 1 --head-dim 8 --raw --prompt 'Zara lives in "
      "Paris.' --max-tokens 2 --json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_LE(json["tokens"]["generated"], 2);
  EXPECT_LT(json["tokens"]["prompt"], 16);  // no template
  EXPECT_EQ(json["inputs"]["head_dim"], 8);
}

TEST_F(AccuracyProgram, DrawsThePictures) {
  if (RunCommand("command -v gnuplot", dir_.path()).exit_code != 0) {
    KVLAB_SKIP_OR_FAIL("gnuplot", "not installed; install gnuplot-nox");
  }
  const ProgramRun run =
      Run(StrCat("--svg ", File("a.svg"), " --svg-heads ", File("b.svg")));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  const std::string a = ReadFile(dir_ / "a.svg");
  EXPECT_TRUE(a.starts_with("<?xml") && a.find("</svg>") != std::string::npos);
  for (const char* part : {"outlier 50", "no error", "layer 2", "V only"}) {
    EXPECT_NE(a.find(part), std::string::npos) << part;
  }
  const std::string b = ReadFile(dir_ / "b.svg");
  EXPECT_NE(b.find(">query head<"), std::string::npos);
}

TEST_F(AccuracyProgram, SaysHowToGetGnuplot) {
  // Nothing on stdout: before the work.
  for (const std::string option : {"--svg", "--svg-heads"}) {
    EXPECT_TRUE(FailsWithOneLine(
        Run(StrCat(option, " ", File("a.svg"), " --csv ", File("a.csv")),
            "PATH=" + File("absent")),
        1, "day09_accuracy",
        option + ": there is no gnuplot here, so no picture; install it "
                 "(apt-get install gnuplot-nox"));
  }
  EXPECT_FALSE(Exists("a.svg") || Exists("a.csv"));
}

TEST_F(AccuracyProgram, ReplacesNoFileIfOneCannotBeWritten) {
  WriteFile(dir_ / "a.csv", "before");
  std::filesystem::create_directory(dir_ / "programs");
  WriteFile(dir_ / "programs/gnuplot", "#!/bin/sh\nexit 1\n");
  std::filesystem::permissions(dir_ / "programs/gnuplot",
                               std::filesystem::perms::all);
  const ProgramRun run =
      Run(StrCat("--csv ", File("a.csv"), " --svg-heads ", File("a.svg")),
          "PATH=" + File("programs") + ":/bin:/usr/bin");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_TRUE(Has(run.err, "gnuplot: expected a picture")) << run.err;
  EXPECT_EQ(ReadFile(dir_ / "a.csv"), "before");
  EXPECT_FALSE(Exists("a.svg"));
}

TEST_F(AccuracyProgram, RefusesBadInputWithOneLine) {
  const auto fails = [&](const std::string& arguments, int exit_code,
                         const std::string& part) {
    EXPECT_TRUE(
        FailsWithOneLine(Exactly(arguments), exit_code, "day09_accuracy", part))
        << arguments;
  };
  fails("--tokens 0", 2, "--tokens");
  fails("--tokens 65537", 2, "65536");
  fails("--draws some", 2, "--draws");
  fails("--head-dim 1025", 2, "--head-dim");
  fails("--positions 0", 2, "--positions");
  fails("--csv=", 2, "--csv= expected a value");
  fails("--svg ''", 2, "--svg");
  fails("--tile 1", 2, "--tile");
  fails("--isa no", 2, "no");
  fails("--prompt x --context 64", 2, "excludes");
  fails("--raw --prompt a", 2, "the prompt has 1 token");
  fails("--context 9000", 2, "positions for 8192");
  fails("--context 8190 --max-tokens 40", 2, "positions for 8192");
  fails("--model " + File("absent"), 1, "absent");
  for (const char* option : {"--csv", "--svg", "--svg-heads"}) {
    fails(StrCat("--context 64 ", option, " ", File("absent/x")), 1,
          "absent/x: cannot be written");
    fails(StrCat("--context 64 ", option, " -"), 2,
          StrCat(option, ": expected the name of a file, found \"-\""));
  }
}

}  // namespace
}  // namespace kvlab
