// Numbers for readers, digit for digit as normscope/rounding.py writes them.
const MINUS = "−";

function withSign(digits, value, signed) {
  if (value < 0) return MINUS + digits;
  return signed && value > 0 ? `+${digits}` : digits;
}

function grouped(digits) {
  const [whole, fraction] = digits.split(".");
  const thousands = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return fraction === undefined ? thousands : `${thousands}.${fraction}`;
}

// Three significant digits: 0.0123, 1,230, −4.56×10⁻⁷.
function formatNumber(value, signed = false) {
  if (Number.isNaN(value)) return "";
  if (!Number.isFinite(value)) return withSign("∞", value, signed);
  if (value === 0) return "0";
  const [mantissa, exponent] = Math.abs(value).toExponential(2).split("e");
  const power = Number(exponent);
  if (power > -4 && power < 6) {
    const fixed = power > 2 ? String(Math.round(Number(mantissa) * 100) * 10 ** (power - 2)) : Math.abs(value).toPrecision(3);
    return withSign(grouped(fixed), value, signed);
  }
  const superscripts = String(power).replace(/./g, (sign) => (sign === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign]));
  return withSign(`${mantissa}×10${superscripts}`, value, signed);
}

// A share with one decimal: 12.3%.
function formatPercentage(share, signed = false) {
  if (!Number.isFinite(share)) return formatNumber(share, signed);
  const digits = (Math.abs(share) * 100).toFixed(1);
  return `${withSign(grouped(digits), Number(digits) ? share : 0, signed)}%`;
}
