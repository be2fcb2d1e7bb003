// A small picture of a row on a scale shared by all.
function thumbnail(name, most, width = 200, height = 64) {
  const stack = stackOf(name), columns = Math.min(100, stack.count), base = new Float64Array(columns);
  const picked = Array.from({ length: columns }, (_, k) => {
    let best = Math.floor((k * stack.count) / columns);
    for (let i = best; i < Math.floor(((k + 1) * stack.count) / columns); ++i) if (stack.total[i] > stack.total[best]) best = i;
    return best;
  });
  const x = linear(0, columns, 0, width), y = linear(0, most, height, 0);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    categoryOrder.map((category, c) => {
      if (!stack.used.includes(category)) return null;
      let up = "", down = "";
      picked.forEach((i, k) => {
        const low = round(y(base[k]));
        base[k] += stack.live[c][i];
        up += `${k ? "L" : "M"}${round(x(k))} ${round(y(base[k]))}H${round(x(k + 1))}`;
        down = `L${round(x(k + 1))} ${low}H${round(x(k))}${down}`;
      });
      return svg("path", { d: `${up}${down}Z`, fill: categoryColour(category) });
    }));
}
