// What the null rank says: the text's place after a resume, and stamps that can be read back.
#include "actors/null_text.h"

#include <doctest/doctest.h>

#include <string>

using namespace troupe;

namespace {

constexpr sequence_id one{1}, two{2};

std::vector<int32_t> stamp_ids() {
  std::vector<int32_t> ids;
  for (const char c : stamp_alphabet) ids.push_back(c);
  return ids;
}

null_text::time at_us(int64_t us) { return null_text::time(std::chrono::microseconds(us)); }

} // namespace

TEST_CASE("null_text: the text goes on where a resumed sequence had got to") {
  null_text text({7, 8, 9}, {});
  text.begin(one, 4);
  CHECK(text.next(one) == 8);
  CHECK(text.next(one) == 9);
  CHECK(text.next(one) == 7);
}

TEST_CASE("null_text: a stamp spells the time at which its mark left, whatever other sequences do") {
  null_text text({7}, stamp_ids());
  text.begin(one, 0);
  text.begin(two, 5);
  std::string said;
  for (int i = 0; i < 16; i++) {
    said += static_cast<char>(text.next(one));
    if (i > 2) text.next(two);
    text.sent(at_us(1000 + i * 32));
  }
  CHECK(said == "@00000v8@0000178"); // 1000 = 31 * 32 + 8, 1256 = 32 * 32 + 7 * 32 + 8
}

TEST_CASE("null_text: a sequence that comes back begins with a mark") {
  null_text text({7}, stamp_ids());
  text.begin(one, 0);
  text.next(one);
  text.next(one);
  text.begin(one, 2);
  CHECK(text.next(one) == '@');
}
