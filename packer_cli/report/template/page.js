"use strict";
(() => {
  const { look, charts } = JSON.parse(document.getElementById("specs").textContent);
  const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, config: look };

  async function draw(name, spec) {
    const place = document.getElementById("chart-" + name);
    try {
      const { view } = await vegaEmbed(place, spec, options);
      await settle(view);
      window.addEventListener("resize", () => settle(view)); // After Vega's own listener.
      place.dataset.drawn = "yes";
    } catch (error) {
      place.textContent = "This chart could not be drawn (" + error.message + "). The table below says the same.";
      console.error(error);
    }
  }

  // A legend has as many columns as fit the width of the axes, which is known only once they are laid out: so a chart
  // is laid out once more, or the rows that a narrower legend needs would be cut off.
  async function settle(view) {
    await view.runAsync();
    await view.resize().runAsync();
  }

  async function drawAll() {
    for (const [name, spec] of Object.entries(charts)) {
      await draw(name, spec);
      await new Promise(requestAnimationFrame); // The page stays responsive between two charts.
    }
    document.documentElement.dataset.drawn = "yes";
  }

  drawAll();
})();
