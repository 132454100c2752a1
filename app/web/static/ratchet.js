// The page's own script: pause the updates, keep the reader's place, announce what changed.
(function () {
  "use strict";
  var tables = document.getElementById("tables");
  var announcement = document.getElementById("announcement");
  var button = document.getElementById("pause");
  var paused = false;
  var said = summary();
  var places = {};

  function summary() {
    var element = document.getElementById("summary");
    return element ? element.dataset.summary : "";
  }

  button.hidden = false;
  button.addEventListener("click", function () {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
  });

  document.body.addEventListener("htmx:beforeRequest", function (event) {
    if (paused || document.hidden) {
      event.preventDefault();
    }
  });

  // A swap makes new elements: how far a table was scrolled sideways would be lost every two seconds.
  document.body.addEventListener("htmx:beforeSwap", function () {
    places = {};
    tables.querySelectorAll(".scroll[id]").forEach(function (region) {
      places[region.id] = region.scrollLeft;
    });
  });

  // Figures change all the time; only a change of workers or problems is worth a listener's attention.
  document.body.addEventListener("htmx:afterSwap", function () {
    Object.keys(places).forEach(function (id) {
      var region = document.getElementById(id);
      if (region) {
        region.scrollLeft = places[id];
      }
    });
    tables.classList.remove("stale");
    if (summary() !== said) {
      said = summary();
      announcement.textContent = said;
    }
  });

  ["htmx:sendError", "htmx:responseError", "htmx:timeout"].forEach(function (name) {
    document.body.addEventListener(name, function () {
      if (!tables.classList.contains("stale")) {
        tables.classList.add("stale");
        said = "The page's server does not answer. These figures are old.";
        announcement.textContent = said;
      }
    });
  });
})();
