"use strict";
(() => {
  const { look, charts } = JSON.parse(document.getElementById("specs").textContent);
  const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, config: look };

  async function draw(name, spec) {
    const place = document.getElementById("chart-" + name);
    try {
      await vegaEmbed(place, spec, options);
      place.dataset.drawn = "yes";
    } catch (error) {
      place.textContent = "This chart could not be drawn (" + error.message + "). The table below says the same.";
      console.error(error);
    }
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
