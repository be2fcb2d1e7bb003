// Light and dark. The system decides until the reader does.
const themes = ["auto", "light", "dark"];

function storedTheme() {
  try {
    return themes.includes(localStorage.getItem("ebb-theme")) ? localStorage.getItem("ebb-theme") : "auto";
  } catch {
    return "auto"; // pages opened from a file may have no storage
  }
}

function applyTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

function themeButton() {
  let theme = storedTheme();
  const button = html("button", { type: "button", class: "quiet", title: "Change between light and dark" });
  const show = () => {
    applyTheme(theme);
    button.textContent = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }[theme];
  };
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try {
      localStorage.setItem("ebb-theme", theme);
    } catch {
      // it lasts until the page is closed
    }
    show();
  });
  show();
  return button;
}
