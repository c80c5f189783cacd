// The API key: in this tab alone, and gone with it.
const NAME = "medusaq-key";

export const key = () => sessionStorage.getItem(NAME) ?? "";
export const hasKey = () => key() !== "";
export const keepKey = (value) => sessionStorage.setItem(NAME, value);
export const forgetKey = () => sessionStorage.removeItem(NAME);
