// Separators ", " and ": "; integers verbatim; numbers with a point or an exponent become doubles.
#include "net/python_json.h"

#include "net/json_text.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

namespace troupe {
namespace {

// digits "12345" and decimal exponent e of d.dddd * 10^e -> Python's repr.
std::string place_point(std::string_view digits, int exponent) {
  std::string out;
  if (exponent >= -4 && exponent < 16) {
    if (exponent < 0) {
      out = "0." + std::string(static_cast<size_t>(-exponent - 1), '0');
      out += digits;
    } else if (static_cast<size_t>(exponent) + 1 >= digits.size()) {
      out = digits;
      out.append(static_cast<size_t>(exponent) + 1 - digits.size(), '0');
      out += ".0";
    } else {
      out = digits.substr(0, static_cast<size_t>(exponent) + 1);
      out += '.';
      out += digits.substr(static_cast<size_t>(exponent) + 1);
    }
    return out;
  }
  out = digits.substr(0, 1);
  if (digits.size() > 1) {
    out += '.';
    out += digits.substr(1);
  }
  out += exponent < 0 ? "e-" : "e+";
  const auto magnitude = std::to_string(std::abs(exponent));
  if (magnitude.size() < 2) out += '0';
  return out + magnitude;
}

std::string to_python_double(double value) {
  if (value == 0) return std::signbit(value) ? "-0.0" : "0.0";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity"; // what Python makes of 1e999
  char text[40];
  const auto r = std::to_chars(text, text + sizeof text, std::fabs(value), std::chars_format::scientific);
  const std::string_view all(text, static_cast<size_t>(r.ptr - text)); // d.ddde+XX
  const size_t e = all.find('e');
  std::string digits(all.substr(0, 1));
  if (e > 2) digits += all.substr(2, e - 2);
  const int exponent = std::atoi(std::string(all.substr(e + 1)).c_str());
  return (value < 0 ? "-" : "") + place_point(digits, exponent);
}

} // namespace

std::string to_python_number(std::string_view text) {
  if (text.find_first_of(".eE") == std::string_view::npos) return text == "-0" ? "0" : std::string(text);
  return to_python_double(std::strtod(std::string(text).c_str(), nullptr));
}

void append_python_json(std::string& out, const json_value& v) {
  switch (v.kind) {
  case json_kind::null: out += "null"; break;
  case json_kind::boolean: out += v.text; break;
  case json_kind::number: out += to_python_number(v.text); break;
  case json_kind::string: append_json_string(out, v.text); break;
  case json_kind::array:
  case json_kind::object: {
    const bool object = v.is(json_kind::object);
    out += object ? '{' : '[';
    for (size_t i = 0; i < v.items.size(); i++) {
      if (i) out += ", ";
      if (object) {
        append_json_string(out, v.keys[i]);
        out += ": ";
      }
      append_python_json(out, v.items[i]);
    }
    out += object ? '}' : ']';
  }
  }
}

std::string to_python_json(const json_value& v) {
  std::string out;
  append_python_json(out, v);
  return out;
}

} // namespace troupe
