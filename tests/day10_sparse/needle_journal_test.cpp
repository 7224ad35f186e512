/// The journal of a grid: what is done is not lost, and never mixed up.
#include "day10_sparse/needle_journal.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/base/error.h"
#include "tests/loader/temp_dir.h"

namespace kvlab {
namespace {

class NeedleJournal : public testing::Test {
 protected:
  NeedleJournal() {
    settings_.contexts = {64, 256};
    settings_.depths = {0, 0.1};
    settings_.ks = {1, 4};
    settings_.arms = {BlockArm::kArticle};
    settings_.seeds = 2;
  }
  GridUnit Unit(int context, double depth, std::uint64_t seed) {
    return {.id = {context, depth, seed},
            .needle = "Zara's \"pet\" is Leo.",
            .exact = true,
            .sparse = {{true, false}, {false, true}}};
  }
  std::vector<GridUnit> Open() {
    return Journal(path_, settings_, header_).units();
  }
  void Append(const GridUnit& unit) {
    Journal(path_, settings_, header_).Append(unit);
  }
  void Write(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  std::string Text() { return ReadFile(path_); }
  /// Refused with this part in the message, the file untouched.
  void ExpectRefused(const std::string& part) {
    const std::string before = Text();
    try {
      Open();
      ADD_FAILURE() << "not refused; expected: " << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
    EXPECT_EQ(Text(), before);
  }
  TempDir dir_;
  std::filesystem::path path_ = dir_ / "journal";
  GridSettings settings_;
  nlohmann::ordered_json header_ = {{"seeds", 2}, {"kv", "q8"}};
};

TEST_F(NeedleJournal, KeepsUnits) {
  EXPECT_TRUE(Open().empty());
  Append(Unit(64, 0.1, 1));
  Append(Unit(256, 0, 2));
  const std::vector<GridUnit> units = Open();
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(units[0].id, (UnitId{64, 0.1, 1}));
  EXPECT_EQ(units[1].id, (UnitId{256, 0, 2}));
  EXPECT_EQ(units[0].needle, "Zara's \"pet\" is Leo.");
  EXPECT_TRUE(units[0].exact);
  ASSERT_EQ(units[0].sparse.size(), 2u);
  EXPECT_TRUE(units[0].sparse[0].found);
  EXPECT_FALSE(units[0].sparse[0].same);
  EXPECT_TRUE(units[0].sparse[1].same);
}

/// Cut anywhere in its last line, it loses that unit and no more, and what is
/// added then is whole.
TEST_F(NeedleJournal, IgnoresATornLastLine) {
  Open();
  Append(Unit(64, 0.1, 1));
  const std::string one = Text();
  Append(Unit(256, 0, 2));
  const std::string two = Text();
  for (std::size_t size = one.size(); size < two.size(); ++size) {
    Write(two.substr(0, size));
    ASSERT_EQ(Open().size(), 1u) << size;
    EXPECT_EQ(Text(), one);
  }
  Write(two.substr(0, two.size() - 3));
  Append(Unit(256, 0, 2));
  EXPECT_EQ(Text(), two);
  // Torn in its first line it is as good as new.
  for (std::size_t size = 0; size < one.find('\n'); ++size) {
    Write(two.substr(0, size));
    ASSERT_TRUE(Open().empty());
    EXPECT_EQ(Text(), two.substr(0, two.find('\n') + 1));
  }
}

TEST_F(NeedleJournal, RefusesOtherSettings) {
  Append(Unit(64, 0.1, 1));
  header_["kv"] = "f32";
  ExpectRefused("kv is \"q8\" there and \"f32\" here");
  header_["kv"] = "q8";
  header_["new"] = 1;
  ExpectRefused("new is not told there and 1 here");
  header_ = {{"seeds", 2}};
  ExpectRefused("settings that this program does not know");
}

TEST_F(NeedleJournal, RefusesWhatIsNoJournal) {
  for (const char* text :
       {"a letter to a friend", "{}\n", "[1]\n", "{\"kind\": 1}\n", "\n",
        "{\"kind\":\"day10_needle journal 1\",\"settings\":7}\n"}) {
    Write(text);
    ExpectRefused("it is no journal");
  }
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_THROW(Open(), Error);
}

TEST_F(NeedleJournal, RefusesABrokenLine) {
  Append(Unit(64, 0.1, 1));
  const std::string good = Text();
  const std::string header = good.substr(0, good.find('\n') + 1);
  for (const auto& [line, part] : {
           std::pair{"{\"context\":64", "line 2"},
           {"[]", "line 2"},
           {"{\"context\":\"64\"}", "context"},
           {"{\"context\":64,\"depth\":0,\"seed\":1}", "needle"},
           {"{\"context\":64,\"depth\":0,\"seed\":1,\"needle\":\"\","
            "\"exact\":true,\"found\":\"1\",\"same\":\"11\"}",
            "found"},
           {"{\"context\":64,\"depth\":0,\"seed\":1,\"needle\":\"\","
            "\"exact\":true,\"found\":\"12\",\"same\":\"11\"}",
            "found"},
       }) {
    Write(StrCat(header, line, '\n'));
    ExpectRefused(part);
  }
}

TEST_F(NeedleJournal, IsOfOneRunAtATime) {
  const Journal journal(path_, settings_, header_);
  ExpectRefused("another run");
}

/// A unit twice, as after two runs on different machines: it counts once.
TEST_F(NeedleJournal, CountsAUnitOnce) {
  Append(Unit(64, 0.1, 1));
  Append(Unit(64, 0.1, 1));
  EXPECT_EQ(Open().size(), 1u);
}

}  // namespace
}  // namespace kvlab
